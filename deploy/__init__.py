"""Tools that build, check and deploy; no part of what is installed."""
