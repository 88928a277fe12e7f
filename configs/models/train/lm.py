"""Train the demonstration language model (llama architecture) on one CPU core.

    python3 lm.py --work /tmp/aloft-train/lm

resumes from the checkpoint in --work if there is one. The network is written
out here rather than taken from a library because it must agree with llama.cpp
in every detail: RMS norms, rotary positions over interleaved pairs, SwiGLU, and
an output layer that shares the embedding's weights.

Two choices for so small a budget: every training window begins with <s> at the
start of a verse, which is how the model is prompted later; and windows are
short (256 tokens) until the last part of the run, which uses the full context
of 512, since attention over long windows is the costliest way to learn words.

The learning rate is constant and then falls in a straight line over the last
--cool steps. On a shared machine nobody knows beforehand how many steps an hour
will hold; with this schedule the end may be set, by --steps, while it runs.
"""

import argparse
import json
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import corpus

CONFIG = dict(vocab=2048, width=192, layers=6, heads=6, hidden=512, context=512,
              eps=1e-5, theta=10000.0)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, h = c["width"], c["hidden"]
        self.heads, self.eps = c["heads"], c["eps"]
        self.attn_norm = nn.Parameter(torch.ones(d))
        self.ffn_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * h, bias=False)
        self.down = nn.Linear(h, d, bias=False)

    def forward(self, x, cos, sin, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(norm(x, self.attn_norm, self.eps)).split(d, dim=2)
        shape = (b, t, self.heads, d // self.heads)
        q, k, v = (z.view(shape).transpose(1, 2) for z in (q, k, v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        scores = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2),
                               alpha=shape[3] ** -0.5)
        a = torch.bmm(scores.softmax(-1), v.flatten(0, 1))
        x = x + self.out(a.view(b, self.heads, t, -1).transpose(1, 2).reshape(b, t, d))
        g, u = self.gate_up(norm(x, self.ffn_norm, self.eps)).chunk(2, dim=2)
        return x + self.down(F.silu(g) * u)


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    """Rotary positions over pairs (0,1), (2,3), ...: llama.cpp's NORM style."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embed = nn.Embedding(c["vocab"], c["width"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.Parameter(torch.ones(c["width"]))
        half = c["width"] // c["heads"] // 2
        freq = c["theta"] ** (-torch.arange(half) / half)
        angle = torch.outer(torch.arange(c["context"]), freq)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.04 / math.sqrt(2 * c["layers"]) if deep else 0.04)

    def forward(self, ids):
        t = ids.shape[1]
        mask = torch.full((t, t), -1e9).triu(1)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos[:t], self.sin[:t], mask)
        return F.linear(norm(x, self.norm, self.config["eps"]), self.embed.weight)


def streams(bpe, chapters):
    """All chapters as one list of tokens, and where each verse starts in it."""
    ids, starts = [], []
    for _, verses in chapters:
        for verse in verses:
            starts.append(len(ids))
            ids += bpe.encode(verse + "\n")
        ids.append(1)
    return torch.tensor(ids), torch.tensor(starts)


def bits_per_byte(model, bpe, chapters, limit=None):
    """Mean cost of held-out text. Each chapter is cut into windows of a full
    context, each begun afresh with <s>: no window sees the one before."""
    model.eval()
    bits = size = 0
    context = model.config["context"]
    with torch.no_grad():
        for _, verses in chapters[:limit]:
            ids = bpe.encode("\n".join(verses) + "\n")
            size += len(("\n".join(verses) + "\n").encode())
            for at in range(0, len(ids), context - 1):
                part = torch.tensor([0] + ids[at:at + context - 1])
                logits = model(part[None, :-1])[0]
                bits += F.cross_entropy(logits, part[1:], reduction="sum").item() / math.log(2)
    model.train()
    return bits / size


def greedy(model, ids, count):
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
            if ids[-1] == 1:
                break
    return ids


def load(work):
    """The last checkpoint's model and its tokeniser, for the other scripts."""
    with open(f"{work}/bpe.json") as file:
        bpe = corpus.BPE(json.load(file))
    state = torch.load(f"{work}/lm.pt")
    model = LM(state["config"])
    model.load_state_dict(state["model"])
    return model.eval(), bpe, state["step"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--work", default="/tmp/aloft-train/lm")
    p.add_argument("--bible", default="bible", help="command of Debian's bible-kjv")
    p.add_argument("--steps", type=int, default=1400)
    p.add_argument("--tokens", type=int, default=2048, help="per step")
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--cool", type=int, default=350, help="steps at the end, over which the rate falls to nearly 0")
    p.add_argument("--long", type=int, default=80, help="steps at the end with 512-token windows")
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    os.makedirs(a.work, exist_ok=True)

    train, held = corpus.kjv_split(corpus.kjv_chapters(a.bible))
    path = f"{a.work}/bpe.json"
    if not os.path.exists(path):
        text = "\n".join(v for _, verses in train for v in verses)
        with open(path, "w") as file:
            json.dump(corpus.BPE.learn(text, CONFIG["vocab"]).merges, file)
    with open(path) as file:
        bpe = corpus.BPE(json.load(file))
    ids, starts = streams(bpe, train)
    model = LM(CONFIG)
    decay = [q for q in model.parameters() if q.dim() == 2]
    rest = [q for q in model.parameters() if q.dim() != 2]
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
                            betas=(0.9, 0.95))
    step = 0
    if os.path.exists(f"{a.work}/lm.pt"):
        state = torch.load(f"{a.work}/lm.pt")
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        step = state["step"]
    print(f"{sum(q.numel() for q in model.parameters())} parameters, {len(ids)} tokens of text, "
          f"from step {step}", flush=True)

    began, seen, mean = time.time(), 0, None
    while step < a.steps:
        # Seeded by the step, so that a resumed run draws the windows a whole one would.
        draw = torch.Generator().manual_seed(step)
        length = 512 if step >= a.steps - a.long else 256
        usable = starts[starts < len(ids) - length]
        pick = usable[torch.randint(len(usable), (a.tokens // length,), generator=draw)]
        y = torch.stack([ids[s:s + length] for s in pick.tolist()])
        x = torch.cat((torch.zeros(len(y), 1, dtype=torch.long), y[:, :-1]), 1)
        rate = a.rate * min(1, (step + 1) / 100, 0.02 + (a.steps - step) / a.cool)
        for group in opt.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        seen += a.tokens
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % 20 == 0:
            print(f"step {step} loss {mean:.3f} rate {rate:.1e} {seen / (time.time() - began):.0f} tok/s",
                  flush=True)
        if step % 50 == 0 or step == a.steps:
            torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), step=step, config=CONFIG),
                       f"{a.work}/lm.tmp")
            os.replace(f"{a.work}/lm.tmp", f"{a.work}/lm.pt")
        if step % 200 == 0 or step == a.steps:
            print(f"step {step} held-out bits/byte {bits_per_byte(model, bpe, held, 12):.3f} "
                  f"(first 12 chapters)", flush=True)


if __name__ == "__main__":
    main()
