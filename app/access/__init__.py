"""Access control: API keys, scopes and rate limits."""
