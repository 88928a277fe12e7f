"""Read and write GGUF version 3, as far as the two models need it.

A GGUF file is a header, typed key-value pairs, a table of tensors, and their
data, each aligned to 32 bytes. Dimensions are written innermost first, the
reverse of numpy's order. Matrices may be F32, F16 or Q8_0 (blocks of 32 bytes
that share an F16 scale); vectors stay F32, because llama.cpp asks for that.
"""

import os
import struct

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TYPES = {"F32": 0, "F16": 1, "Q8_0": 8}
ALIGN = 32
# Tables that are added row by row: llama.cpp has no sum of F32 and Q8_0, and ends
# the process when a file asks for one.
ADDED = ("position_embd.weight", "token_types.weight")


def string(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(v):
    """(type, bytes) of a Python value."""
    if isinstance(v, bool):
        return BOOL, struct.pack("<?", v)
    if isinstance(v, int):
        return U32, struct.pack("<I", v)
    if isinstance(v, float):
        return F32, struct.pack("<f", v)
    if isinstance(v, str):
        return STRING, string(v)
    if all(isinstance(x, str) for x in v):
        kind, raw = STRING, b"".join(map(string, v))
    elif all(isinstance(x, int) for x in v):
        kind, raw = I32, struct.pack(f"<{len(v)}i", *v)
    else:
        kind, raw = F32, struct.pack(f"<{len(v)}f", *v)
    return ARRAY, struct.pack("<IQ", kind, len(v)) + raw


def pack(array, kind):
    if kind == "F32":
        return array.astype("<f4").tobytes()
    if kind == "F16":
        return array.astype("<f2").tobytes()
    blocks = array.astype(np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    out = np.empty(len(blocks), dtype=[("scale", "<f2"), ("q", "i1", 32)])
    out["scale"], out["q"] = scale[:, 0], np.rint(blocks * inverse)
    return out.tobytes()


def unpack(raw, kind, shape):
    if kind == "Q8_0":
        blocks = np.frombuffer(raw, dtype=[("scale", "<f2"), ("q", "i1", 32)])
        return (blocks["scale"].astype(np.float32)[:, None] * blocks["q"]).reshape(shape)
    return np.frombuffer(raw, dtype="<f4" if kind == "F32" else "<f2").astype(np.float32).reshape(shape)


def write(path, fields, tensors, kind="F32"):
    """fields: {key: value}; tensors: {name: numpy array}. The file appears whole
    or not at all, since others may be reading the old one."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields))
    for key, v in fields.items():
        number, raw = value(v)
        head += string(key) + struct.pack("<I", number) + raw
    table, data = b"", b""
    for name, array in tensors.items():
        use = kind if array.ndim > 1 and name not in ADDED else "F32"
        table += string(name) + struct.pack("<I", array.ndim)
        table += struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        table += struct.pack("<IQ", TYPES[use], len(data))
        raw = pack(array, use)
        data += raw + b"\0" * (-len(raw) % ALIGN)
    head += table
    with open(path + ".tmp", "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGN) + data)
    os.replace(path + ".tmp", path)


def read(path):
    """(fields, {name: float32 array}, {name: type}) of a file written by write."""
    with open(path, "rb") as file:
        raw = file.read()
    at = 0

    def take(form):
        nonlocal at
        out = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return out if len(out) > 1 else out[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return raw[at - n:at].decode()

    def item(kind):
        if kind == STRING:
            return text()
        if kind == ARRAY:
            inner, n = take("I"), take("Q")
            return [item(inner) for _ in range(n)]
        return take({U32: "I", I32: "i", F32: "f", BOOL: "?"}[kind])

    magic, version, tensors, fields = take("4sIQQ")
    if magic != b"GGUF" or version != 3:
        raise ValueError(f"{path} is not a GGUF version 3 file")
    keys = {}
    for _ in range(fields):
        key = text()
        keys[key] = item(take("I"))
    table = []
    for _ in range(tensors):
        name, n = text(), take("I")
        shape = [take("Q") for _ in range(n)][::-1]
        table.append((name, shape, take("I"), take("Q")))
    start = at + -at % ALIGN
    names = {number: name for name, number in TYPES.items()}
    arrays, kinds = {}, {}
    for name, shape, number, offset in table:
        count, kinds[name] = int(np.prod(shape)), names[number]
        size = {"F32": 4 * count, "F16": 2 * count, "Q8_0": count // 32 * 34}[names[number]]
        arrays[name] = unpack(raw[start + offset:start + offset + size], names[number], shape)
    return keys, arrays, kinds
