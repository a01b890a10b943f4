//! Command lines taken apart by the quoting of POSIX (XCU 2.2), without anything that only a shell does.

/// A word of a command line: its bytes, and whether each was quoted and so stands for itself.
pub type Word = Vec<(u8, bool)>;

/// Why a line has no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsplit {
    /// A quote is not closed.
    Unclosed,
    /// Something is to be put in the place of this, inside of double quotes.
    Expansion(u8),
}

/// Splits a line at blanks. What an unquoted byte means is for the caller to say.
///
/// # Errors
/// [`Unsplit`].
pub fn words(line: &[u8]) -> Result<Vec<Word>, Unsplit> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut bytes = line.iter().copied();
    let mut next = || bytes.next().ok_or(Unsplit::Unclosed);
    while let Ok(byte) = next() {
        match byte {
            b' ' | b'\t' => words.extend(word.take()),
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match next()? {
                        b'\'' => break,
                        other => word.push((other, true)),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match next()? {
                        b'"' => break,
                        expanded @ (b'$' | b'`') => return Err(Unsplit::Expansion(expanded)),
                        b'\\' => match next()? {
                            b'\n' => {}
                            escaped @ (b'"' | b'\\' | b'$' | b'`') => word.push((escaped, true)),
                            other => word.extend([(b'\\', true), (other, true)]),
                        },
                        other => word.push((other, true)),
                    }
                }
            }
            b'\\' => match next()? {
                b'\n' => {}
                escaped => word.get_or_insert_default().push((escaped, true)),
            },
            other => word.get_or_insert_default().push((other, false)),
        }
    }
    words.extend(word);
    Ok(words)
}
