"""A small transformer that learns to write this package, character by character, on a CPU.

Text, network and loop of the chapter Use it. All weights are matrices: no biases, no gains.
"""

import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention

import qrlib

# characters that the network looks back at; its width, heads and layers
CONTEXT, WIDTH, HEADS, LAYERS = 32, 64, 4, 2


def text():
    """The modules of qrlib, one after the other: what every reader has."""
    folder = Path(qrlib.__file__).parent
    return "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))


def encoded(words):
    """(tensor of the characters' numbers, the characters)."""
    known = sorted(set(words))
    number = {c: k for k, c in enumerate(known)}
    return torch.tensor([number[c] for c in words]), "".join(known)


class Layer(nn.Module):
    """Attention to what came before, then two products with a bend between them."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = rms_norm(x, (WIDTH,))
        heads = (
            each(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        seen = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        return x + self.down(self.up(rms_norm(x, (WIDTH,))).relu())


class Writer(nn.Module):
    """Logits of the next character [B, T, characters] from characters [B, T]."""

    def __init__(self, characters):
        super().__init__()
        self.letter = nn.Embedding(characters, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.out = nn.Linear(WIDTH, characters, bias=False)

    def forward(self, x):
        y = self.letter(x) + self.place.weight[: x.shape[1]]
        return self.out(rms_norm(self.layers(y), (WIDTH,)))


def train(optimizer, *, steps=150, seed=0, batch=8):
    """Losses [steps] in bits a character, of a writer that `optimizer(weights)` has trained.

    The seed decides the first weights and the order of the text, and nothing else is random.
    """
    generator = torch.Generator().manual_seed(seed)
    numbers, known = encoded(text())
    model = Writer(len(known))
    for W in model.parameters():
        nn.init.normal_(W, std=0.5 * W.shape[1] ** -0.5, generator=generator)
    made = optimizer(list(model.parameters()))
    rates = [group["lr"] for group in made.param_groups]
    losses = []
    for step in range(steps):
        # the rate climbs for a tenth of the steps, then falls to a tenth
        at = min((step + 1) / (steps / 10), 1 - 0.9 * (step - steps / 10) / (0.9 * steps))
        for group, rate in zip(made.param_groups, rates):
            group["lr"] = at * rate
        first = torch.randint(len(numbers) - CONTEXT, (batch, 1), generator=generator)
        x = numbers[first + torch.arange(CONTEXT + 1)]
        loss = cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        made.zero_grad()
        loss.backward()
        made.step()
        losses.append(loss.item() / math.log(2))
    return losses
