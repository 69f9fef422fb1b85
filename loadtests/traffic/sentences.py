"""Sentences of common words for models that read text; most models use one token per word."""

from __future__ import annotations

import math
import random

import orjson

from models.codec_specs import TextCodecSpec

LIST = """
engine server model batch queue cache window thread signal memory figure table answer question
request packet river lake ocean island beach valley forest desert mountain garden field bridge
road station harbor airport bread butter cheese coffee sugar pepper apple lemon orange onion
garlic salad soup kitchen bottle spoon doctor teacher farmer baker painter driver sailor lawyer
nurse singer writer actor judge guard hunter mother father sister brother uncle cousin neighbor
friend child baby guest stranger crowd family team village dog cat horse sheep goat rabbit mouse
bear wolf fox tiger lion eagle owl duck fish red blue green yellow purple brown black white grey
silver golden pink dark bright pale clear small large tiny huge short long narrow wide heavy
light early late quick slow young old quiet loud warm cold wet dry empty full sharp soft honest
brave clever lazy hungry happy runs walks jumps moves flies climbs sleeps wakes reads writes
sings paints cooks builds repairs opens closes carries throws catches finds loses buys sells
sends brings follows leads begins ends grows falls never always often sometimes today tomorrow
yesterday here there above below behind between inside outside near the a this that every some
many few one two three four five six seven eight and or but because while before after until
with without under over into from through against monday friday spring summer autumn winter
morning evening night hour week month year century moment season paper pencil letter book story
poem song music violin piano guitar drum camera picture film museum library
"""
WORDS = tuple(LIST.split())
LEAST_WORDS = 5  # they encode the number of a sentence
MOST_WORDS = 250
SENTENCES = len(WORDS) ** LEAST_WORDS
# Lengths are log-normal. With special tokens, half of the sentences have up to 20 tokens.
MEDIAN_WORDS, SIGMA = 18, 0.6
MIXER = 0x9E3779B97F4A7C15  # odd: a product with it modulo a power of two never collides


def sentence(number: int) -> str:
    """Return the sentence of a number; all numbers below `SENTENCES` give different ones."""
    rng = random.Random(number)  # nosec B311 # repeatable, not secret
    length = round(MEDIAN_WORDS * math.exp(rng.gauss(0, SIGMA)))
    words = []
    left = number * MIXER % SENTENCES  # so that neighbours differ
    for _ in range(LEAST_WORDS):
        left, word = divmod(left, len(WORDS))
        words.append(WORDS[word])
    more = max(LEAST_WORDS, min(length, MOST_WORDS)) - LEAST_WORDS
    return " ".join([*words, *rng.choices(WORDS, k=more)])


def text_json(codec: TextCodecSpec, number: int) -> bytes:
    """Return an item for a model that reads text, as JSON: one or two sentences."""
    if codec.pairs:
        return orjson.dumps([sentence(2 * number), sentence(2 * number + 1)])
    return orjson.dumps(sentence(number))
