"""Models from a store: a copy of its repository on this machine, which its servers share."""
