//! The words of a command line, and the display of bytes.
//!
//! Words are separated by blanks. Blanks within quotes, single or double, are part of a word. A backslash escapes `\`,
//! a quote or a blank, or begins one of `\n`, `\r`, `\t`, `\0` and `\x` with two hexadecimal digits. [`words`] parses
//! the output of [`show`], except for the enclosing quotes that `show` possibly adds.

use std::borrow::Cow;

/// Returns a line as text. Bytes that are not UTF-8 are escaped in the form that [`words`] parses.
pub fn text(line: &[u8]) -> Cow<'_, str> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if let Ok(text) = str::from_utf8(line) {
        return text.into();
    }
    let mut text = String::new();
    for chunk in line.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text.into()
}

/// Splits a line into words.
pub fn words(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', _) => word.get_or_insert_default().push_escape(&mut chars)?,
            (c, Some(q)) if c == q => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => {
                let mut utf8 = [0; 4];
                word.get_or_insert_default().extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
            }
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".into());
    }
    words.extend(word);
    Ok(words)
}

trait PushEscape {
    fn push_escape(&mut self, chars: &mut std::str::Chars<'_>) -> Result<(), String>;
}

impl PushEscape for Vec<u8> {
    /// Appends the byte of the escape sequence that follows a backslash.
    fn push_escape(&mut self, chars: &mut std::str::Chars<'_>) -> Result<(), String> {
        let byte = match chars.next() {
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('0') => 0,
            Some('x') => {
                let mut digit = || chars.next().and_then(|c| c.to_digit(16)).map(|d| d as u8);
                match (digit(), digit()) {
                    (Some(high), Some(low)) => high << 4 | low,
                    _ => return Err("\\x needs two hexadecimal digits".into()),
                }
            }
            Some(c @ ('\\' | '"' | '\'' | ' ')) => c as u8,
            Some(c) => return Err(format!("\\{c} means nothing; a backslash is written \\\\")),
            None => return Err("a backslash at the end of the line".into()),
        };
        self.push(byte);
        Ok(())
    }
}

/// Formats bytes for people. Printable text is unchanged, and all other bytes are escaped.
pub fn show(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                c if c.is_control() => {
                    let mut utf8 = [0; 4];
                    for byte in c.encode_utf8(&mut utf8).bytes() {
                        text.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(line: &str) -> Vec<String> {
        words(line).unwrap().into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
    }

    #[test]
    fn lines_are_cut_into_words() {
        assert_eq!(strings("  put  k v "), ["put", "k", "v"]);
        assert_eq!(strings(r#"put "a b" 'c "d"' e\ f"#), ["put", "a b", "c \"d\"", "e f"]);
        assert_eq!(strings(r#"put k"" '' x"y"z"#), ["put", "k", "", "xyz"]);
        assert_eq!(strings(r"put é \\\n\t"), ["put", "é", "\\\n\t"]);
        assert_eq!(strings(""), Vec::<String>::new());
        assert_eq!(words(r"\x00\xfF\0").unwrap(), [vec![0, 255, 0]]);
    }

    #[test]
    fn bytes_that_are_no_text_come_through() {
        assert_eq!(
            words(&text(b"put k\xff '\xc3 b'\r")).unwrap(),
            [&b"put"[..], b"k\xff", b"\xc3 b"]
        );
        assert_eq!(text("get é".as_bytes()), "get é");
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in ["put \"a", "'", "a\\", "\\q", "\\x1", "\\xgg"] {
            assert!(words(line).is_err(), "{line}");
        }
    }

    #[test]
    fn shown_bytes_are_understood_again() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"plain", "a\u{85}b é".as_bytes(), b"\\n"] {
            let quoted = format!("\"{}\"", show(bytes).replace('"', "\\\""));
            assert_eq!(words(&quoted).unwrap(), [bytes]);
        }
        assert_eq!(show("hé".as_bytes()), "hé");
    }
}
