"""Stored reproductions: what was done, between which parties, and what it is expected to show."""
