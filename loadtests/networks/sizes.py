"""The names of the networks, and the sizes of what they accept and return."""

MOBILENET, RESNET, BERT = "mobilenet", "resnet50", "bert"
SIDE, CLASSES = 224, 1000  # of pictures
TOKENS, WORDS, LONGEST = 64, 30_522, 512  # of texts; the first is that of requests
