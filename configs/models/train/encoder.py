"""Train the demonstration sentence encoder (BERT architecture) on one CPU core.

    python3 encoder.py --work /tmp/aloft-train/encoder

resumes from the checkpoint in --work if there is one. A WordNet synset gives
several texts about one meaning: its words, its gloss, an example, and the gloss
of the more general synset above it. The encoder learns to put the two texts of
such a pair close together and all the other texts of the batch further off
(InfoNCE over cosines, with a learnt temperature).

Each batch holds pairs of one kind only. Mixed batches would let the model tell
pairs apart by their form (a word list against a sentence) instead of by meaning.

Transformer steps cost about a second here, steps without the blocks a tenth of
it. So the run begins as a plain bag of words (the mean of normalised embeddings),
which already learns which words go together, and then adds the blocks, whose
output layers start near zero: the deep model takes up where the bag left off.

Training texts are short, so positions are shifted by a random offset half of
the time; otherwise the later position vectors would stay as random as they were
born, and any longer text would be encoded as noise.
"""

import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import corpus

CONFIG = dict(vocab=6000, width=192, layers=4, heads=6, hidden=768, context=256, eps=1e-12)
LONGEST = 32  # tokens of a training text, [CLS] and [SEP] included


class Block(nn.Module):
    """BERT's block: the norms come after the sums."""

    def __init__(self, c):
        super().__init__()
        d = c["width"]
        self.heads = c["heads"]
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.attn_norm = nn.LayerNorm(d, c["eps"])
        self.up = nn.Linear(d, c["hidden"])
        self.down = nn.Linear(c["hidden"], d)
        self.out_norm = nn.LayerNorm(d, c["eps"])

    def forward(self, x, mask):
        b, t, d = x.shape
        shape = (b, t, self.heads, d // self.heads)
        q, k, v = (z.view(shape).transpose(1, 2) for z in self.qkv(x).split(d, dim=2))
        scores = q @ k.transpose(2, 3) * shape[3] ** -0.5 + mask
        a = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)
        x = self.attn_norm(x + self.out(a))
        return self.out_norm(x + self.down(F.gelu(self.up(x), approximate="tanh")))


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["width"]
        self.config = c
        self.token = nn.Embedding(c["vocab"], d)
        self.position = nn.Embedding(c["context"], d)
        self.segment = nn.Parameter(torch.zeros(2, d))  # only the first is ever used
        self.norm = nn.LayerNorm(d, c["eps"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.scale = nn.Parameter(torch.tensor(math.log(20.0)))
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.04)
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)
        nn.init.normal_(self.position.weight, std=0.01)
        for block in self.blocks:
            nn.init.normal_(block.out.weight, std=0.002)
            nn.init.normal_(block.down.weight, std=0.002)

    def forward(self, ids, offset=0, depth=None):
        """ids: padded with 0, which is [PAD]. Returns unit vectors."""
        real = (ids != 0).float()
        mask = (1 - real)[:, None, None, :] * -1e9
        x = self.token(ids) + self.position.weight[offset:offset + ids.shape[1]] + self.segment[0]
        x = self.norm(x)
        for block in self.blocks[:depth]:
            x = block(x, mask)
        x = (x * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
        return F.normalize(x, dim=1)


def pad(rows):
    out = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, r in enumerate(rows):
        out[i, :len(r)] = torch.tensor(r)
    return out


def tokens(pieces, text, longest=LONGEST):
    return [2] + pieces.encode(text)[:longest - 2] + [3]


def encode(model, rows, size=64, **options):
    """Vectors of many token rows, in their order. Rows of like length share a
    batch, since padding costs as much as text."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    out = [model(pad([rows[i] for i in order[at:at + size]]), **options)
           for at in range(0, len(order), size)]
    back = torch.tensor(order).argsort()
    return torch.cat(out)[back]


def embed(model, pieces, texts, longest=LONGEST, **options):
    with torch.no_grad():
        return encode(model, [tokens(pieces, t, longest) for t in texts], **options)


def words(synset, draw=None):
    """The synset's words as one text; in training a random part of them, so that
    the number of words does not matter."""
    lemmas = list(synset.lemmas)
    if draw:
        draw.shuffle(lemmas)
        lemmas = lemmas[:draw.randint(1, len(lemmas))]
    return ", ".join(lemmas)


def kinds(synsets):
    """The training pairs, as (weight, list of drawing functions' arguments, function)."""
    train = [s for s in synsets.values() if not s.held]
    above = [(s, synsets[h]) for s in train for h in s.hypernyms if h in synsets and not synsets[h].held]
    return [
        (0.45, train, lambda s, d: (words(s, d), s.gloss)),
        (0.15, [s for s in train if s.examples], lambda s, d: (d.choice(s.examples), s.gloss)),
        (0.15, [s for s in train if len(s.lemmas) > 1], lambda s, d: tuple(d.sample(s.lemmas, 2))),
        (0.15, above, lambda p, d: (words(p[0], d), p[1].gloss)),
        (0.10, above, lambda p, d: (p[0].gloss, p[1].gloss)),
    ]


def contrast(model, left, right, depth):
    """InfoNCE both ways. The same text may occur twice in a batch (one hypernym of
    several synsets); such a pair is no negative and is taken out."""
    texts = {}
    a = torch.tensor([texts.setdefault(tuple(r), len(texts)) for r in left])
    b = torch.tensor([texts.setdefault(tuple(r), len(texts)) for r in right])
    same = (a[:, None] == a[None]) | (b[:, None] == b[None]) | (a[:, None] == b[None])
    same.fill_diagonal_(False)
    offset = 0
    if random.random() < 0.5:
        offset = random.randrange(model.config["context"] - LONGEST)
    x, y = encode(model, left + right, offset=offset, depth=depth).chunk(2)
    scores = (x @ y.t() * model.scale.exp().clamp(max=100)).masked_fill(same, -1e9)
    goal = torch.arange(len(left))
    return (F.cross_entropy(scores, goal) + F.cross_entropy(scores.t(), goal)) / 2


def auc(right, wrong):
    """Chance that a true pair's cosine is above a random pair's (ties count half)."""
    both = torch.cat((right, wrong))
    rank = both.double().argsort().argsort().double() + 1
    n, m = len(right), len(wrong)
    return ((rank[:n].sum() - n * (n + 1) / 2) / (n * m)).item()


def held_out(model, pieces, synsets, limit=None, depth=None):
    """AUC and top-1 among 100 for held-out (words, gloss) pairs. A random pair is
    the words with another held-out synset's gloss."""
    model.eval()
    held = [s for s in synsets.values() if s.held]
    random.Random(7).shuffle(held)
    held = held[:limit]
    x = embed(model, pieces, [words(s) for s in held], depth=depth)
    y = embed(model, pieces, [s.gloss for s in held], depth=depth)
    right = (x * y).sum(1)
    wrong = torch.cat([(x * y.roll(k, 0)).sum(1) for k in range(1, 11)])
    whole = len(x) // 100 * 100
    top = torch.bmm(x[:whole].view(-1, 100, x.shape[1]), y[:whole].view(-1, 100, x.shape[1]).transpose(1, 2))
    top1 = (top.argmax(2) == torch.arange(100)).float().mean().item()
    model.train()
    return auc(right, wrong), top1, len(held)


def load(work):
    """The last checkpoint's model and its tokeniser, for the other scripts."""
    with open(f"{work}/wordpiece.json") as file:
        pieces = corpus.WordPiece(json.load(file))
    state = torch.load(f"{work}/encoder.pt")
    model = Encoder(state["config"])
    model.load_state_dict(state["model"])
    return model.eval(), pieces, state["step"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--work", default="/tmp/aloft-train/encoder")
    p.add_argument("--wordnet", default="/usr/share/wordnet")
    p.add_argument("--steps", type=int, default=200, help="steps with the blocks")
    p.add_argument("--batch", type=int, default=256, help="pairs per step")
    p.add_argument("--rate", type=float, default=4e-4, help="gentle: 1e-3 undid much of what the bag had learnt")
    p.add_argument("--cool", type=int, default=160, help="steps at the end, over which the rate falls to nearly 0")
    p.add_argument("--bag", type=int, default=3400, help="steps before those, without the blocks")
    p.add_argument("--bag-rate", type=float, default=3e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    os.makedirs(a.work, exist_ok=True)

    synsets = corpus.wordnet(a.wordnet)
    path = f"{a.work}/wordpiece.json"
    if not os.path.exists(path):
        texts = [t for s in synsets.values() if not s.held for t in (", ".join(s.lemmas), s.gloss, *s.examples)]
        with open(path, "w") as file:
            json.dump(corpus.WordPiece.learn(texts, CONFIG["vocab"]).tokens, file)
    with open(path) as file:
        pieces = corpus.WordPiece(json.load(file))
    model = Encoder(CONFIG)
    decay = [q for q in model.parameters() if q.dim() == 2]
    rest = [q for q in model.parameters() if q.dim() != 2]
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=0.05), dict(params=rest, weight_decay=0.0)],
                            betas=(0.9, 0.98))
    step = 0
    if os.path.exists(f"{a.work}/encoder.pt"):
        state = torch.load(f"{a.work}/encoder.pt")
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        step = state["step"]
    pairs = kinds(synsets)
    print(f"{sum(q.numel() for q in model.parameters())} parameters, {len(synsets)} synsets, "
          f"{sum(s.held for s in synsets.values())} held out, from step {step}", flush=True)

    began, first, mean = time.time(), step, None
    whole = a.bag + a.steps
    while step < whole:
        random.seed(step)  # so that a resumed run draws the pairs a whole one would
        _, items, make = random.choices(pairs, [k[0] for k in pairs])[0]
        texts = [make(s, random) for s in random.sample(items, a.batch)]
        left, right = ([tokens(pieces, t[side]) for t in texts] for side in (0, 1))
        if step < a.bag:
            depth, rate = 0, a.bag_rate * min(1, (step + 1) / 100, 0.1 + (a.bag - step) / 400)
        else:
            depth, at = None, step - a.bag
            rate = a.rate * min(1, (at + 1) / 100, 0.02 + (a.steps - at) / a.cool)
        for group in opt.param_groups:
            group["lr"] = rate
        loss = contrast(model, left, right, depth)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % (20 if step > a.bag else 200) == 0:
            print(f"step {step} loss {mean:.3f} rate {rate:.1e} scale {model.scale.exp().item():.1f} "
                  f"{(time.time() - began) / (step - first):.2f} s/step", flush=True)
        if step % (25 if step > a.bag else 500) == 0 or step == whole:
            torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), step=step, config=CONFIG),
                       f"{a.work}/encoder.tmp")
            os.replace(f"{a.work}/encoder.tmp", f"{a.work}/encoder.pt")
        if step % (100 if step > a.bag else 500) == 0 or step == whole:
            print("step %d held-out AUC %.3f, top-1 of 100 %.3f (%d synsets)"
                  % (step, *held_out(model, pieces, synsets, 2000, depth)), flush=True)


if __name__ == "__main__":
    main()
