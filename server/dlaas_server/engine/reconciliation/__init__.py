"""Reconciliation in a turn: transaction, journals, guardians, refused seats, and delivery of wanted documents."""
