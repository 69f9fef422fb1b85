"""Who may call, and how often: API keys and rate limits."""
