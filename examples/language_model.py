"""Which texts are unlike those that a language model knows? Flags with a stated rate from its log-likelihoods.

Any model serves that gives a log-likelihood per token; here one of character trigrams, so that nothing has to be downloaded.
python examples/language_model.py
"""

import math
import random
from collections import Counter

from vergence.decide import calibrate

WORDS = "the cat dog bird sees hears likes a small large old house tree river and then sleeps runs under near".split()


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(20))


def model(texts):
    """Returns the mean log-likelihood per character under counts of trigrams."""
    pairs, triples = Counter(), Counter()
    for t in texts:
        pairs.update(t[i : i + 2] for i in range(len(t) - 1))
        triples.update(t[i : i + 3] for i in range(len(t) - 2))

    def log_likelihood(t):
        logs = [math.log((triples[t[i : i + 3]] + 0.1) / (pairs[t[i : i + 2]] + 3)) for i in range(len(t) - 2)]
        return sum(logs) / len(logs)

    return log_likelihood


rng = random.Random(0)
log_likelihood = model([text(rng) for _ in range(2000)])
calibration = [log_likelihood(text(rng)) for _ in range(1000)]  # texts that the model was not fitted to
new = [text(rng) for _ in range(195)] + ["".join(rng.sample(text(rng), 80)) for _ in range(5)]  # five are shuffled
found = calibrate(calibration, [log_likelihood(t) for t in new], larger_is_anomalous=False)
print(found.sentences[0])
print("flagged:", found.flag.nonzero()[0].tolist())
