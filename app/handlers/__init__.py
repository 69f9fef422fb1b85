"""Users' code in processes of its own: framing, supervision, calls back into the data plane."""
