"""Forecast of start times, and how well former forecasts held."""
