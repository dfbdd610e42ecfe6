"""MessagePack, as far as ftd's messages need it: what `ft_wire::encode` writes. Also the beginning of small programs that speak it themselves."""

import struct


def pack(value):
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return struct.pack(">BQ", 0xcf, value) if value >= 0 else struct.pack(">Bq", 0xd3, value)
        case str():
            text = value.encode()
            return struct.pack(">BI", 0xdb, len(text)) + text
        case bytes():
            return struct.pack(">BI", 0xc6, len(value)) + value
        case list() | tuple():
            return struct.pack(">BI", 0xdd, len(value)) + b"".join(map(pack, value))
        case dict():
            return struct.pack(">BI", 0xdf, len(value)) + b"".join(pack(key) + pack(one) for key, one in value.items())
    raise TypeError(value)


def unpack(data):
    return _unpack(data, 0)[0]


def _unpack(data, at):
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xe0:
        return (first if first < 0x80 else first - 0x100), at
    if first in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[first], at
    numbers = {0xca: "f", 0xcb: "d", 0xcc: "B", 0xcd: "H", 0xce: "I", 0xcf: "Q", 0xd0: "b", 0xd1: "h", 0xd2: "i", 0xd3: "q"}
    lengths = {0xc4: "B", 0xc5: "H", 0xc6: "I", 0xd9: "B", 0xda: "H", 0xdb: "I", 0xdc: "H", 0xdd: "I", 0xde: "H", 0xdf: "I"}
    if form := numbers.get(first, lengths.get(first)):
        (number,) = struct.unpack_from(">" + form, data, at)
        at += struct.calcsize(form)
        if first in numbers:
            return number, at
    else:
        number = first & (0x1f if 0xa0 <= first < 0xc0 else 0xf)
    if first in (0xc4, 0xc5, 0xc6):
        return bytes(data[at:at + number]), at + number
    if 0xa0 <= first < 0xc0 or first in (0xd9, 0xda, 0xdb):
        return data[at:at + number].decode(), at + number
    values = []
    pairs = 0x80 <= first < 0x90 or first in (0xde, 0xdf)
    for _ in range(number * (2 if pairs else 1)):
        value, at = _unpack(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2])) if pairs else values), at
