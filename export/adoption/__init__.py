"""Exports models made elsewhere: programs, TorchScript, archives, Hugging Face folders."""
