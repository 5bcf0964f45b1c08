//! Trees as Python pickles, protocol 2: dictionaries, lists, strings, integers, booleans and `None`.

use serde_json::Value;

/// The pickle of a tree. Numbers that are not integers become strings.
pub(crate) fn pickle(tree: &Value) -> Vec<u8> {
    let mut out = b"\x80\x02".to_vec();
    write(&mut out, tree);
    out.push(b'.');
    out
}

fn write(out: &mut Vec<u8>, tree: &Value) {
    match tree {
        Value::Null => out.push(b'N'),
        Value::Bool(true) => out.push(b'\x88'),
        Value::Bool(false) => out.push(b'\x89'),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => write_integer(out, value.into()),
            (None, Some(value)) => write_integer(out, value.into()),
            (None, None) => write_text(out, &number.to_string()),
        },
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.extend(b"](");
            items.iter().for_each(|item| write(out, item));
            out.push(b'e');
        }
        Value::Object(fields) => {
            out.extend(b"}(");
            for (name, value) in fields {
                write_text(out, name);
                write(out, value);
            }
            out.push(b'u');
        }
    }
}

/// Four bytes if that is enough, else as many as it takes, two's complement, the lowest first.
fn write_integer(out: &mut Vec<u8>, value: i128) {
    if let Ok(short) = i32::try_from(value) {
        out.push(b'J');
        out.extend(short.to_le_bytes());
        return;
    }
    let bytes = value.to_le_bytes();
    // 64 bits and a sign fit in nine bytes.
    out.extend([0x8a, 9]);
    out.extend(&bytes[..9]);
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    // Nothing that is exported has a text of four gigabytes.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    out.push(b'X');
    out.extend(length.to_le_bytes());
    out.extend(text.as_bytes().iter().take(length as usize));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_has_its_opcode() {
        let bytes = pickle(&json!([null, true, false, -2, 1u64 << 40, {"a": "b"}]));
        let mut expected = b"\x80\x02](N\x88\x89J\xfe\xff\xff\xff\x8a\x09".to_vec();
        expected.extend([0, 0, 0, 0, 0, 1, 0, 0, 0]);
        expected.extend(b"}(X\x01\x00\x00\x00aX\x01\x00\x00\x00bue.");
        assert_eq!(bytes, expected);
    }
}
