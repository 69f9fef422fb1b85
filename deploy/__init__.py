"""Tools that build, check and deploy; not part of the installed package."""
