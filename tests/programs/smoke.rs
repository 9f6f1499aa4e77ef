//! The smallest program that uses everything once: fills memory, copies it, checks it by a kernel.
//! Prints `mismatches N` and ends with status 0 when there are none. Runs on simcuda only, since it uses its kernels.

use harness::driver::Failure;
use harness::gpu::Argument::Word;
use harness::gpu::Gpu;
use harness::pattern;

fn run() -> Result<u64, Failure> {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let bytes = 16 << 20;
    let (weight, counter) = (gpu.alloc(bytes)?, gpu.alloc(8)?);
    let stream = gpu.stream()?;
    gpu.upload(counter, &[0; 8])?;
    gpu.launch("fill", stream, &[Word(weight), Word(bytes as u64), Word(7)])?;
    gpu.launch("check", stream, &[Word(weight), Word(bytes as u64), Word(7), Word(counter)])?;
    gpu.synchronize()?;
    let by_kernel = gpu.word(counter)?;
    let by_host = pattern::mismatches(7, &gpu.download(weight, bytes)?) as u64;
    gpu.free(weight)?;
    gpu.free(counter)?;
    Ok(by_kernel + by_host)
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    match run() {
        Ok(0) => println!("mismatches 0"),
        Ok(wrong) => {
            println!("mismatches {wrong}");
            std::process::exit(1);
        }
        Err(failure) => {
            eprintln!("{failure}");
            std::process::exit(2);
        }
    }
}
