//! The profile's file: read whole and checked, written whole or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use flextensor_core::saved::{Saved, SavedError, parse};

/// More than any profile: 10,000 weights take 10 MB.
const MOST_BYTES: u64 = 256 << 20;

/// The profile; none where there is no file.
///
/// # Errors
/// What is wrong with the file, by its name.
pub(super) fn read(path: &Path) -> Result<Option<Saved>, SavedError> {
    let name = path.display().to_string();
    match text(path) {
        Ok(text) => parse(&name, &text).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SavedError::Unreadable { file: name, why: error.to_string() }),
    }
}

fn text(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    // Opening a pipe would wait for somebody to write to it.
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if found.len() > MOST_BYTES {
        return Err(io::Error::other(format!(
            "it has {} bytes; at most {MOST_BYTES} are allowed",
            found.len()
        )));
    }
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Puts the text in the file's place; whoever reads meanwhile sees the old file or the new one. Makes the folder where there is none.
///
/// # Errors
/// What the system says; the old file is then as it was.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temporary = path.with_extension(format!("json.{}.tmp", std::process::id()));
    let written = write_through(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
        return written;
    }
    // The name is on disk when the folder is; not every file system can say so.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

fn write_through(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn fresh_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ft-profile-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let folder = fresh_folder("whole");
        let path = folder.join("a").join("profile.json");
        write(&path, "one").expect("a folder that can be made");
        write(&path, "two").expect("a file that can be replaced");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "two");
        assert_eq!(fs::read_dir(folder.join("a")).expect("the folder").count(), 1);
        fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn what_cannot_be_replaced_stays_as_it_was() {
        let folder = fresh_folder("stays");
        let path = folder.join("profile.json");
        fs::create_dir_all(path.join("full")).expect("a folder in the file's place");
        assert!(write(&path, "text").is_err());
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1, "no temporary file is left");
        let error = read(&path).expect_err("a folder is no file").to_string();
        assert!(error.contains("no regular file") && error.contains("profile.json"), "{error}");
        fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn no_file_is_no_error_and_bytes_that_are_no_text_are_one() {
        let folder = fresh_folder("text");
        let path = folder.join("profile.json");
        assert_eq!(read(&path), Ok(None));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(&path, [0xff, 0xfe, 0x00]).expect("a file");
        assert!(read(&path).is_err());
        fs::remove_dir_all(folder).expect("ours");
    }
}
