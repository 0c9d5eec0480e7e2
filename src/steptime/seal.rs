//! The last line of a fit file: a checksum of all that stands above it, so that a file that was cut off or changed by
//! hand is not taken for a fit.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::input::InputError;

/// What the line with the checksum begins with; it is the last of the file.
const SEAL: &str = "checksum: sha256-";
const HOW: &str = "a fit as the program wrote it: make it anew, or take the original";

/// `body` with the line that seals it.
pub fn seal(body: &str) -> String {
    let digest: String = Sha256::digest(body.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("{body}{SEAL}{digest}\n")
}

/// What a seal stands under; `None` where there is no seal.
///
/// # Errors
/// [`InputError`] when the seal belongs to another text.
pub fn unseal<'a>(text: &'a str, path: &Path) -> Result<Option<&'a str>, InputError> {
    let Some(at) = text
        .rfind(SEAL)
        .filter(|&at| at == 0 || text.as_bytes()[at - 1] == b'\n')
    else {
        return Ok(None);
    };
    let body = &text[..at];
    if seal(body).trim_end() == text.trim_end() {
        return Ok(Some(body));
    }
    Err(
        InputError::in_file(path, "the checksum does not belong to this text: it was changed")
            .at("checksum")
            .allowed(HOW),
    )
}

/// What a seal stands under.
///
/// # Errors
/// [`InputError`] when there is none, or when it belongs to another text.
pub fn require_seal<'a>(text: &'a str, path: &Path) -> Result<&'a str, InputError> {
    unseal(text, path)?.ok_or_else(|| {
        InputError::in_file(path, "has no checksum: it is cut off or no fit")
            .at("checksum")
            .allowed(HOW)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_holds_its_text_and_no_other() {
        let path = Path::new("fit.yaml");
        let text = seal("a: 1\nb: 2\n");
        assert_eq!(require_seal(&text, path).unwrap(), "a: 1\nb: 2\n");
        // An editor that ends or drops the last line changes nothing.
        assert_eq!(require_seal(text.trim_end(), path).unwrap(), "a: 1\nb: 2\n");
        for (wrong, part) in [
            (text.replace("b: 2", "b: 3"), "was changed"),
            (text.replace("a: 1\n", ""), "was changed"),
            (text.replace("sha256-", "sha256-0"), "was changed"),
            (format!("{text}c: 3\n"), "was changed"),
            (text[..text.len() - 10].to_owned(), "was changed"),
            ("a: 1\nb: 2\n".to_owned(), "has no checksum"),
            (String::new(), "has no checksum"),
        ] {
            let e = require_seal(&wrong, path).unwrap_err().to_string();
            assert!(e.contains(part) && e.contains("fit.yaml"), "{wrong}: {e}");
        }
        assert_eq!(unseal("a: 1\n", path).unwrap(), None);
        // The words inside a line are no seal.
        assert_eq!(unseal("note: no checksum: sha256-\n", path).unwrap(), None);
    }
}
