"""Conformal p-values and false-discovery control in loops, as their definitions say."""


def p_value(calibration, s):
    return (1 + sum(1 for c in calibration if c >= s)) / (len(calibration) + 1)


def random_p_value(calibration, s, u):
    above = equal = 0
    for c in calibration:
        above += c > s
        equal += c == s
    return (above + u * (1 + equal)) / (len(calibration) + 1)


def mondrian(calibration, labels, s, label):
    return p_value([c for c, g in zip(calibration, labels, strict=True) if g == label], s)


def cross_p_value(calibration, folds, by_fold):
    """The p-value of a new item whose score by the fit without fold k is ``by_fold[k]``."""
    count = sum(1 for c, k in zip(calibration, folds, strict=True) if c >= by_fold[k])
    return (1 + count) / (len(calibration) + 1)


def own_cross_p_value(calibration, folds, i):
    others = [c for c, k in zip(calibration, folds, strict=True) if k != folds[i]]
    return p_value(others, calibration[i])


def benjamini_hochberg(p, level):
    """Whether each of the items is reported: the step-up procedure, literally."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    last = 0
    for k, i in enumerate(order, 1):
        if p[i] <= level * k / len(p) * (1 + 1e-12):
            last = k
    chosen = set(order[:last])
    return [i in chosen for i in range(len(p))]


def storey(p, level):
    m = len(p)
    share = min(1.0, (1 + sum(1 for x in p if x > 0.5)) / (m * 0.5))
    chosen = benjamini_hochberg(p, level / share)
    return [c and x <= 0.5 for c, x in zip(chosen, p, strict=True)]


def weighted_p_value(calibration, weights, s, w):
    return (w + sum(v for c, v in zip(calibration, weights, strict=True) if c >= s)) / (w + sum(weights))


def weighted_selection(calibration, cal_weights, scores, weights, level):
    """Weighted conformal selection with deterministic pruning (Jin and Candes 2023, algorithm 1), in loops."""
    m = len(scores)
    total = sum(cal_weights)
    p = [weighted_p_value(calibration, cal_weights, scores[j], weights[j]) for j in range(m)]
    sizes = []
    for j in range(m):
        auxiliary = []
        for i in range(m):
            if i == j:
                auxiliary.append(0.0)
                continue
            above = sum(v for c, v in zip(calibration, cal_weights, strict=True) if c >= scores[i])
            above += weights[j] if scores[j] >= scores[i] else 0.0
            auxiliary.append(above / (total + weights[j]))
        sizes.append(sum(benjamini_hochberg(auxiliary, level)))
    first = [j for j in range(m) if p[j] <= level * sizes[j] / m * (1 + 1e-12)]
    best = 0
    for r in range(1, m + 1):
        if sum(1 for j in first if sizes[j] <= r) >= r:
            best = r
    return [j in first and sizes[j] <= best for j in range(m)]
