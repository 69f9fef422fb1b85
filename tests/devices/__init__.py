"""`make bench-devices`: what several replicas do in one process, the engine alone, without HTTP."""
