"""Tests of the package `torchlane`."""
