"""The methods on images in loops over images, patches, pixels, crops and prototypes, in float64; autograd gives the gradient."""

import math

import torch


def squared_error(x, y):
    """Returns the mean over items of the sum of squared differences."""
    return sum(((a - b) ** 2).sum() for a, b in zip(x, y, strict=True)) / len(x)


def gaussian_nll(x, mean, s):
    """Returns the mean over items of -sum log N(x; mean, s^2)."""
    constant = x[0].numel() * math.log(s * math.sqrt(2 * math.pi))
    return squared_error(x, mean) / (2 * s * s) + constant


def kl(mu, log_variance):
    """Returns the mean over items of KL(N(mu, diag exp(log_variance)) || N(0, I))."""
    return sum(0.5 * (m * m + torch.exp(lv) - 1 - lv).sum() for m, lv in zip(mu, log_variance, strict=True)) / len(mu)


def patch(x, index, side):
    """Returns the numbers of a patch of one image (C, H, W): by rows, columns, then channels."""
    per_row = x.shape[2] // side
    top, left = (index // per_row) * side, (index % per_row) * side
    return [x[c, top + i, left + j] for i in range(side) for j in range(side) for c in range(x.shape[0])]


def masked_error(x, predicted, masked, side, normalize=False):
    """Returns the mean over images, masked patches and pixels of the squared error; x (B, C, H, W), predicted (B, L, P)."""
    total, count = 0.0, 0
    for n in range(len(x)):
        for index in sorted(masked[n].tolist()):
            numbers = torch.stack(patch(x[n], index, side))
            if normalize:
                mean = sum(numbers) / len(numbers)
                variance = sum((u - mean) ** 2 for u in numbers) / (len(numbers) - 1)
                numbers = (numbers - mean) / torch.sqrt(variance + 1e-6)
            for u, v in zip(numbers, predicted[n, index], strict=True):
                total, count = total + (u - v) ** 2, count + 1
    return total / count


def visible_tokens(vit, x, keep):
    """Returns the tokens of one image (C, H, W) at its visible patches, prefix first, from convolution and blocks of timm."""
    embedded = vit.patch_embed.proj(x[None])[0].flatten(1).T
    rows, positions, prefix = [], vit.pos_embed[0], vit.num_prefix_tokens
    if prefix:
        rows.append(vit.cls_token[0, 0] + positions[0])
    for index in keep.tolist():
        rows.append(embedded[index] + positions[prefix + index])
    tokens = torch.stack(rows)[None]
    for block in vit.blocks:
        tokens = block(tokens)
    return vit.norm(tokens)[0]


def full_decoder(decoder, tokens, keep, grid, prefix):
    """Returns the predictions at all positions of one image, every patch in its place, as in the released code of MAE."""
    embedded = decoder.embed(tokens)
    rows = [embedded[i] for i in range(prefix)]
    place = {index: prefix + i for i, index in enumerate(keep.tolist())}
    for index in range(grid[0] * grid[1]):
        row = embedded[place[index]] if index in place else decoder.mask
        rows.append(row + decoder.positions[index])
    x = torch.stack(rows)[None]
    for block in decoder.blocks:
        x = block(x)
    return decoder.predict(decoder.norm(x))[0, prefix:]


def softmax(values):
    top = max(v.detach() for v in values)
    powers = [torch.exp(v - top) for v in values]
    return [p / sum(powers) for p in powers]


def cross_entropy(teacher, student, center, s, t):
    """Returns DINO's loss: teacher (2, B, K) and student (V, B, K) outputs, the crops in one order."""
    total, pairs = 0.0, 0
    for i, outputs in enumerate(teacher):
        for j, others in enumerate(student):
            if i == j:
                continue
            for g, h in zip(outputs, others, strict=True):
                p = softmax([(a - c) / t for a, c in zip(g, center, strict=True)])
                q = softmax([b / s for b in h])
                total = total - sum(a * torch.log(b) for a, b in zip(p, q, strict=True))
                pairs += 1
    return total / pairs


def moved_center(center, teacher, momentum):
    """Returns the center after a batch of the teacher's outputs (2, B, K)."""
    rows = [row for view in teacher for row in view]
    mean = [sum(row[k] for row in rows) / len(rows) for k in range(len(center))]
    return torch.stack([momentum * c + (1 - momentum) * m for c, m in zip(center, mean, strict=True)])


def moved(teacher, student, momentum):
    """Returns teacher's weights, by name, one step later."""
    return {name: momentum * w + (1 - momentum) * student[name] for name, w in teacher.items()}


def layer_normalized(row):
    mean = sum(row) / len(row)
    variance = sum((u - mean) ** 2 for u in row) / len(row)
    return [(u - mean) / torch.sqrt(variance + 1e-5) for u in row]


def smooth(u, v):
    d = abs(u - v)
    return d * d / 2 if d.detach() < 1 else d - 0.5


def block_prediction_error(student, teacher, predictor, x, context, targets):
    """Returns I-JEPA's loss, an image and a block at a time; student and teacher are transformers, x is standardized."""
    total, count = 0.0, 0
    for n in range(len(x)):
        tokens = visible_tokens(student, x[n], context[n])
        with torch.no_grad():
            everything = visible_tokens(teacher, x[n], torch.arange(teacher.patch_embed.num_patches))
        for block in targets[n]:
            embedded = predictor.embed(tokens)
            rows = [embedded[i] + predictor.positions[index] for i, index in enumerate(context[n].tolist())]
            rows += [predictor.mask + predictor.positions[index] for index in block.tolist()]
            y = torch.stack(rows)[None]
            for layer in predictor.blocks:
                y = layer(y)
            predicted = predictor.predict(predictor.norm(y))[0, -len(block) :]
            for row, index in zip(predicted, block.tolist(), strict=True):
                for u, v in zip(row, layer_normalized(everything[index]), strict=True):
                    total, count = total + smooth(u, v), count + 1
    return total / count


def released_blocks(n, grid, generator, targets=4, scale=(0.15, 0.2), aspect=(0.75, 1.5), context=(0.85, 1.0), least=10):
    """Returns the patches of each image's context, as I-JEPA's released code samples them (src/masks/multiblock.py), as a list.

    One number decides share and aspect of a block; a block has at most one row and one column less than the grid and never
    reaches the last ones; after 20 places a context may overlap with one more target block.
    """

    def size(scale, aspect):
        share = torch.rand(1, generator=generator).item()
        area = int(grid[0] * grid[1] * (scale[0] + share * (scale[1] - scale[0])))
        ratio = aspect[0] + share * (aspect[1] - aspect[0])
        return min(round(math.sqrt(area * ratio)), grid[0] - 1), min(round(math.sqrt(area / ratio)), grid[1] - 1)

    def block(height, width):
        top, left = (int(torch.randint(0, g - s, (1,), generator=generator)) for g, s in zip(grid, (height, width), strict=True))
        return {r * grid[1] + c for r in range(top, top + height) for c in range(left, left + width)}

    small, large, contexts = size(scale, aspect), size(context, (1.0, 1.0)), []
    for _ in range(n):
        hidden, places, allowed = [block(*small) for _ in range(targets)], 0, targets
        while len(kept := block(*large) - set().union(*hidden[:allowed])) <= least:
            places += 1
            allowed = max(targets - places // 20, 0)
        contexts.append(sorted(kept))
    shortest = min(map(len, contexts))
    return [patches[:shortest] for patches in contexts]
