"""The calls of OpenAI, TEI and infinity, which clients of text models know."""
