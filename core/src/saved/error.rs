//! What can be wrong with a profile file: each variant names the file, what was found and what is allowed.

use crate::units::one_line;

/// Why a profile cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// The system does not give its text.
    #[error("profile `{file}` cannot be read: {why}", file = one_line(.file), why = one_line(.why))]
    Unreadable {
        /// The file.
        file: String,
        /// What the system says, or what kind of file it is.
        why: String,
    },
    /// The text is no JSON object.
    #[error("profile `{file}` is no JSON object: {why}; delete it, or save it again", file = one_line(.file), why = one_line(.why))]
    NotJson {
        /// The file.
        file: String,
        /// What the parser says.
        why: String,
    },
    /// An object without a version.
    #[error("profile `{file}` has no key `version`, so it is no profile; version 3 is allowed", file = one_line(.file))]
    NoVersion {
        /// The file.
        file: String,
    },
    /// An older or newer schema.
    #[error("profile `{file}` has version {found}; only version 3 is allowed", file = one_line(.file), found = one_line(.found))]
    OtherVersion {
        /// The file.
        file: String,
        /// The version as it stands there.
        found: String,
    },
    /// Additions of another flextensor.
    #[error("profile `{file}` has flextensor.format {found}; only format 1 is allowed", file = one_line(.file), found = one_line(.found))]
    OtherFormat {
        /// The file.
        file: String,
        /// The format as it stands there.
        found: String,
    },
    /// A key is missing or has another type.
    #[error("profile `{file}` does not read as version 3: {why}", file = one_line(.file), why = one_line(.why))]
    WrongShape {
        /// The file.
        file: String,
        /// What the parser says: key, found, expected, line.
        why: String,
    },
    /// A value is out of range, or contradicts another one.
    #[error("profile `{file}`: `{field}` is {found}; allowed: {allowed}", file = one_line(.file), field = one_line(.field), found = one_line(.found), allowed = one_line(.allowed))]
    BadValue {
        /// The file.
        file: String,
        /// Path of the value.
        field: String,
        /// The value.
        found: String,
        /// What would be right.
        allowed: String,
    },
}

impl SavedError {
    /// Whether the file may be of use to somebody else: another version or format. Such a file is not to be overwritten unasked.
    #[must_use]
    pub fn is_of_another_version(&self) -> bool {
        matches!(
            self,
            SavedError::NoVersion { .. } | SavedError::OtherVersion { .. } | SavedError::OtherFormat { .. }
        )
    }
}

/// An error about one value of a file.
pub(super) fn bad<T>(
    file: &str,
    field: impl Into<String>,
    found: impl ToString,
    allowed: impl Into<String>,
) -> Result<T, SavedError> {
    Err(SavedError::BadValue {
        file: file.to_owned(),
        field: field.into(),
        found: found.to_string(),
        allowed: allowed.into(),
    })
}
