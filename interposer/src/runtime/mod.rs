//! The one live state of a process: what is managed, and what follows from each event.

/// Takes over this process, right after its first successful `cuInit`. No context need be current.
///
/// # Errors
/// Why this process cannot be served, in one line.
pub(crate) fn start(_config: flextensor_config::Config) -> Result<(), String> {
    Ok(())
}
