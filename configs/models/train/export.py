"""Turn a checkpoint into the GGUF file that llama.cpp loads.

    python3 export.py lm --work /tmp/aloft-train/lm --out ../aloft-lm.gguf --type F32
    python3 export.py encoder --work /tmp/aloft-train/encoder --out ../aloft-encoder.gguf --type Q8_0

The names on the left of the tables below are llama.cpp's; the functions run in
both directions, so that evaluate.py can measure the shipped file itself.
"""

import argparse

import torch

import corpus
import encoder
import gguf
import lm

# Each message is written as it is, one to a line, and the model goes on from the
# end of the last: it continues text and knows of no roles.
TEMPLATE = ("{% for message in messages %}{{ message['content'] }}"
            "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}")


def lm_tensors(model):
    """{GGUF name: tensor (a view of the model's own weights)}"""
    out = {"token_embd.weight": model.embed.weight, "output_norm.weight": model.norm}
    for i, b in enumerate(model.blocks):
        p = f"blk.{i}."
        q, k, v = b.qkv.weight.chunk(3)
        gate, up = b.gate_up.weight.chunk(2)
        out.update({p + "attn_norm.weight": b.attn_norm, p + "ffn_norm.weight": b.ffn_norm,
                    p + "attn_q.weight": q, p + "attn_k.weight": k, p + "attn_v.weight": v,
                    p + "attn_output.weight": b.out.weight, p + "ffn_gate.weight": gate,
                    p + "ffn_up.weight": up, p + "ffn_down.weight": b.down.weight})
    return out


def lm_fields(c, bpe):
    return {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "Aloft demonstration language model",
        "general.license": "Apache-2.0",
        "general.description": "A small demonstration model that continues text in the style of the King James "
                               "Bible, which it was trained on from scratch. Not an assistant.",
        "llama.vocab_size": c["vocab"],
        "llama.context_length": c["context"],
        "llama.embedding_length": c["width"],
        "llama.block_count": c["layers"],
        "llama.feed_forward_length": c["hidden"],
        "llama.attention.head_count": c["heads"],
        "llama.attention.head_count_kv": c["heads"],
        "llama.attention.layer_norm_rms_epsilon": c["eps"],
        "llama.rope.dimension_count": c["width"] // c["heads"],
        "llama.rope.freq_base": c["theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": bpe.tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(bpe.tokens) - 2),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in bpe.merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def lm_from(fields, arrays):
    k = "llama."
    c = dict(vocab=fields[k + "vocab_size"], width=fields[k + "embedding_length"], layers=fields[k + "block_count"],
             heads=fields[k + "attention.head_count"], hidden=fields[k + "feed_forward_length"],
             context=fields[k + "context_length"], eps=fields[k + "attention.layer_norm_rms_epsilon"],
             theta=fields[k + "rope.freq_base"])
    bpe = corpus.BPE([m.split(" ") for m in fields["tokenizer.ggml.merges"]])
    return fill(lm.LM(c), lm_tensors, arrays), bpe


def encoder_tensors(model):
    out = {"token_embd.weight": model.token.weight, "position_embd.weight": model.position.weight,
           "token_types.weight": model.segment,
           "token_embd_norm.weight": model.norm.weight, "token_embd_norm.bias": model.norm.bias}
    for i, b in enumerate(model.blocks):
        p = f"blk.{i}."
        for name, w, s in zip("qkv", b.qkv.weight.chunk(3), b.qkv.bias.chunk(3)):
            out.update({f"{p}attn_{name}.weight": w, f"{p}attn_{name}.bias": s})
        for name, m in (("attn_output", b.out), ("attn_output_norm", b.attn_norm), ("ffn_up", b.up),
                        ("ffn_down", b.down), ("layer_output_norm", b.out_norm)):
            out.update({f"{p}{name}.weight": m.weight, f"{p}{name}.bias": m.bias})
    return out


def phantom(token):
    """llama.cpp keeps a mark at the start of a word instead of ## before the rest."""
    if token in corpus.SPECIAL:
        return token
    return token[2:] if token.startswith("##") and len(token) > 2 else "\u2581" + token


def encoder_fields(c, pieces):
    return {
        "general.architecture": "bert",
        "general.type": "model",
        "general.name": "Aloft demonstration sentence encoder",
        "general.license": "Apache-2.0",
        "general.description": "A small demonstration model that turns short English texts into vectors, trained "
                               "from scratch on WordNet 3.0, Copyright 2006 by Princeton University.",
        "bert.vocab_size": c["vocab"],
        "bert.context_length": c["context"],
        "bert.embedding_length": c["width"],
        "bert.block_count": c["layers"],
        "bert.feed_forward_length": c["hidden"],
        "bert.attention.head_count": c["heads"],
        "bert.attention.layer_norm_epsilon": c["eps"],
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [phantom(t) for t in pieces.tokens],
        "tokenizer.ggml.token_type": [3, 2, 3, 3, 3] + [1] * (len(pieces.tokens) - 5),
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 3,  # llama.cpp's spelling
        "tokenizer.ggml.mask_token_id": 4,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }


def encoder_from(fields, arrays):
    k = "bert."
    c = dict(vocab=fields[k + "vocab_size"], width=fields[k + "embedding_length"], layers=fields[k + "block_count"],
             heads=fields[k + "attention.head_count"], hidden=fields[k + "feed_forward_length"],
             context=fields[k + "context_length"], eps=fields[k + "attention.layer_norm_epsilon"])
    tokens = [t if t in corpus.SPECIAL else t[1:] if t[0] == "\u2581" else "##" + t
              for t in fields["tokenizer.ggml.tokens"]]
    return fill(encoder.Encoder(c), encoder_tensors, arrays), corpus.WordPiece(tokens)


def fill(model, names, arrays):
    with torch.no_grad():
        for name, view in names(model).items():
            view.copy_(torch.from_numpy(arrays[name]))
    return model.eval()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", choices=("lm", "encoder"))
    p.add_argument("--work")
    p.add_argument("--out")
    p.add_argument("--type", choices=gguf.TYPES, default="F32")
    a = p.parse_args()
    work = a.work or f"/tmp/aloft-train/{a.model}"
    if a.model == "lm":
        model, tokens, step = lm.load(work)
        tensors, fields = lm_tensors(model), lm_fields(model.config, tokens)
    else:
        model, tokens, step = encoder.load(work)
        tensors, fields = encoder_tensors(model), encoder_fields(model.config, tokens)
    arrays = {name: t.detach().numpy() for name, t in tensors.items()}
    out = a.out or f"aloft-{a.model}.gguf"
    gguf.write(out, fields, arrays, a.type)
    print(f"{out}: step {step}, {sum(t.size for t in arrays.values())} weights as {a.type}")


if __name__ == "__main__":
    main()
