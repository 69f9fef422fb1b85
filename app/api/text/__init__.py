"""The calls that clients of text models know: those of OpenAI, TEI and infinity."""
