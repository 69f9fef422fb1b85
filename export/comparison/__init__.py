"""`torchlane compare`: eager, batched, scripted and compiled functions side by side."""
