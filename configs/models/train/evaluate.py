"""Held-out figures of the shipped GGUF files, read back from the files themselves.

    python3 evaluate.py lm ../aloft-lm.gguf
    python3 evaluate.py encoder ../aloft-encoder.gguf

Computed in torch from the file's weights; Q8_0 weights are expanded first, so
llama.cpp, which also rounds the activations, may differ in the third digit.
"""

import argparse

import torch

import corpus
import encoder
import export
import gguf
import lm


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", choices=("lm", "encoder"))
    p.add_argument("file")
    p.add_argument("--bible", default="bible")
    p.add_argument("--wordnet", default="/usr/share/wordnet")
    a = p.parse_args()
    torch.set_num_threads(1)
    fields, arrays, kinds = gguf.read(a.file)
    print(f"{fields['general.name']}: {sum(t.size for t in arrays.values())} weights, "
          f"types {sorted(set(kinds.values()))}")
    if a.model == "lm":
        model, bpe = export.lm_from(fields, arrays)
        train, held = corpus.kjv_split(corpus.kjv_chapters(a.bible))
        print(f"held-out bits per byte: {lm.bits_per_byte(model, bpe, held):.3f} ({len(held)} chapters)")
        print(f"training bits per byte: {lm.bits_per_byte(model, bpe, train[::20]):.3f} ({len(train[::20])} chapters)")
        known = {w for _, verses in train + held for w in corpus.bert_words(" ".join(verses))}
        words, torch_seed = [], torch.manual_seed(5)
        for prompt in ("And the king said unto", "The house of the poor man"):
            print(f"  {prompt!r} ->", repr(bpe.decode(lm.greedy(model, [0] + bpe.encode(prompt), 60))))
        for _ in range(5):
            ids = [0]
            with torch.no_grad():
                for _ in range(200):
                    logits = model(torch.tensor([ids]))[0, -1] / 0.8
                    ids.append(int(torch.multinomial(logits.softmax(0), 1, generator=torch_seed)))
            words += [w for w in corpus.bert_words(bpe.decode(ids)) if w.isalpha()][:-1]
        print(f"sampled text (temperature 0.8): {sum(w in known for w in words)} of {len(words)} words "
              f"are words of the book")
    else:
        model, pieces = export.encoder_from(fields, arrays)
        synsets = corpus.wordnet(a.wordnet)
        score, top1, count = encoder.held_out(model, pieces, synsets)
        print(f"held-out words against gloss: AUC {score:.4f}, top-1 of 100 {top1:.3f} ({count} synsets)")
        held = [s for s in synsets.values() if s.held]
        for name, rows in (("synonym against synonym", [s.lemmas[:2] for s in held if len(s.lemmas) > 1]),
                           ("example against gloss", [(s.examples[0], s.gloss) for s in held if s.examples])):
            x, y = (encoder.embed(model, pieces, [r[i] for r in rows]) for i in (0, 1))
            wrong = torch.cat([(x * y.roll(k, 0)).sum(1) for k in range(1, 11)])
            print(f"held-out {name}: AUC {encoder.auc((x * y).sum(1), wrong):.4f} ({len(rows)} synsets)")


if __name__ == "__main__":
    main()
