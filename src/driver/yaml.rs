//! Writes YAML that YAML 1.1 and 1.2 read alike (Go's readers know both): what could be taken for something else than a
//! string is quoted. Not a serialiser's work, because every byte is reviewed and compared.

use std::fmt::Write;

use serde_json::Value;

/// Appends a document, which ends with a line feed.
pub(super) fn append(out: &mut String, value: &Value) {
    match value {
        Value::Object(_) | Value::Array(_) if !is_empty(value) => block(out, value, 0),
        scalar => {
            inline(out, scalar, 0);
        }
    }
    end_line(out);
}

/// A document by itself.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    append(&mut out, value);
    out
}

/// A map or list, each entry on lines of its own; the cursor is where the first one begins.
fn block(out: &mut String, value: &Value, indent: usize) {
    let mut first = true;
    let mut start = |out: &mut String| {
        if !std::mem::take(&mut first) {
            indentation(out, indent);
        }
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                start(out);
                scalar(out, name);
                out.push(':');
                if is_empty(value) {
                    out.push(' ');
                    inline(out, value, indent);
                } else if matches!(value, Value::Object(_) | Value::Array(_)) {
                    out.push('\n');
                    indentation(out, indent + STEP);
                    block(out, value, indent + STEP);
                    continue;
                } else {
                    out.push(' ');
                    inline(out, value, indent + STEP);
                }
                end_line(out);
            }
        }
        Value::Array(items) => {
            for value in items {
                start(out);
                out.push_str("- ");
                if !is_empty(value) && matches!(value, Value::Object(_) | Value::Array(_)) {
                    block(out, value, indent + STEP);
                } else {
                    inline(out, value, indent + STEP);
                    end_line(out);
                }
            }
        }
        _ => {}
    }
}

/// Columns that a level is further in.
const STEP: usize = 2;

/// Without a formatter's work, which was a tenth of all of it.
fn indentation(out: &mut String, columns: usize) {
    out.extend(std::iter::repeat_n(' ', columns));
}

fn end_line(out: &mut String) {
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Object(fields) if fields.is_empty())
        || matches!(value, Value::Array(items) if items.is_empty())
}

/// A scalar or something empty; a text of lines is written as such, `indent` columns in.
fn inline(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::String(text) if is_literal(text) => {
            out.push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
            for line in text.lines() {
                if line.is_empty() {
                    out.push('\n');
                } else {
                    indentation(out, indent);
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
        Value::String(text) => scalar(out, text),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// Whether the text can stand as lines: the reader takes the indentation from the first one, and keeps one last line feed.
fn is_literal(text: &str) -> bool {
    text.trim_end_matches('\n').contains('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\t', '\n'])
        && text.chars().all(|letter| letter == '\n' || is_plain_letter(letter))
}

/// Printable in every version of YAML, and no line break in any.
fn is_plain_letter(letter: char) -> bool {
    matches!(letter, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}')
}

fn scalar(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    if text.chars().all(is_plain_letter) {
        if text.contains(['"', '\\']) {
            // JSON in a string stays readable so.
            out.extend(["'", &text.replace('\'', "''"), "'"]);
        } else {
            out.extend(["\"", text, "\""]);
        }
        return;
    }
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            letter if is_plain_letter(letter) => out.push(letter),
            letter if u32::from(letter) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => {
                let _ = write!(out, "\\U{:08x}", u32::from(letter));
            }
        }
    }
    out.push('"');
}

/// Whether a string can stand without quotes: a word, a path or a flag, and nothing that a reader knows otherwise.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    let flag = text.strip_prefix("--").unwrap_or(text);
    flag.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '/')
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'_' | b'.' | b'@' | b':' | b'+' | b'=' | b'-' | b','))
        && !text.ends_with(':')
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Anything, often of what readers take for something else.
    fn values() -> impl Strategy<Value = Value> {
        let words = prop::sample::select(vec![
            "",
            "yes",
            "No",
            "null",
            "~",
            "1",
            "1e3",
            "0x1",
            "-",
            "--",
            "- a",
            "a: b",
            "a #b",
            "#",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "%a",
            "@",
            "`",
            "{",
            "[",
            "'",
            "\"",
            "\\",
            "2001-01-01",
            ".inf",
            "=",
            "<<",
            "?",
            "a:",
            " a",
            "a ",
            "---",
            "...",
            "a\nb",
            "a\n b\n",
            "\na\n",
            "a\n\n",
            "a\n\nb",
            "\ta\nb",
            "a\u{85}b\nc",
            "a\r\nb",
            "\u{2028}\n",
            "\u{feff}a\nb",
            "'\"",
            "a\tb\nc",
            "a \n b",
            " a\nb",
            "\na\nb",
            "a\nb\n\n",
            "a\n\n\nb\n",
        ]);
        let text = prop_oneof![words.prop_map(str::to_owned), "(?s).{0,8}"];
        let leaf = prop_oneof![
            text.clone().prop_map(Value::String),
            any::<i64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(text.clone(), inner, 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_it_was(value in values()) {
            let text = write(&value);
            let read: Value = serde_saphyr::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }

    #[test]
    fn a_text_stands_as_lines_where_its_reader_gets_every_byte_of_it_back() {
        for text in ["a\nb", "a\nb\n", "a\n b\n", "a\n\nb\n"] {
            assert!(write(&json!({ "k": text })).starts_with("k: |"), "{text:?}");
        }
        for text in ["a", "a\n", "a\nb\n\n", " a\nb", "\na\nb", "\ta\nb", "a\r\nb", "a\u{85}\nb", "a\u{2028}\nb"] {
            assert!(!write(&json!({ "k": text })).contains('|'), "{text:?}");
        }
    }

    #[test]
    fn what_older_readers_take_for_something_else_is_quoted() {
        let text = write(&json!(["yes", "on", "n", "1_000", "0o17", "12:30:45", "a", "--a=b", "it's \"so\""]));
        let expected =
            "- \"yes\"\n- \"on\"\n- \"n\"\n- \"1_000\"\n- \"0o17\"\n- \"12:30:45\"\n- a\n- --a=b\n- 'it''s \"so\"'\n";
        assert_eq!(text, expected);
    }
}
