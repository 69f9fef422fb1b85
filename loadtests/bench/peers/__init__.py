"""Other servers for the same work, as users would write them; run by their own interpreters."""
