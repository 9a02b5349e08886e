"""Syntax of single statements: names, constants, magics, names as text; pure, and without knowledge of effects."""
