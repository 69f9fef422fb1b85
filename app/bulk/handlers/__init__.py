"""Scoring by a handler, whose processes and models a private server has."""
