"""Conformal p-values and false-discovery baseline in loops, as their definitions say."""


def p_value(calibration, s):
    return (1 + sum(1 for c in calibration if c >= s)) / (len(calibration) + 1)


def benjamini_hochberg(p, level):
    """Whether each of the items is reported: the step-up procedure, literally."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    last = 0
    for k, i in enumerate(order, 1):
        if p[i] <= level * k / len(p) * (1 + 1e-12):
            last = k
    chosen = set(order[:last])
    return [i in chosen for i in range(len(p))]
