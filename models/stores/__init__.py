"""Stores that hold a repository of models: buckets, and folders of web servers."""
