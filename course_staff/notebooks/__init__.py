"""Chapters as files: executed, cleaned, stamped and held against the rules for a chapter."""
