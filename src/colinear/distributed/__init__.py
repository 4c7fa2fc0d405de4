"""Operators on several devices and machines."""
