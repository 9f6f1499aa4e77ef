//! A transformer of a few layers on simcuda's float kernels: embedding tied to the head, attention, gated feed-forward. Weights are large enough
//! to be managed, norms are not. Who is told of it is `naming`'s matter.

use super::naming::Naming;
use harness::driver::Failure;
use harness::gpu::Argument::{Float, Number, Word};
use harness::gpu::{Argument, Gpu};

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: u32,
    pub(crate) dim: u32,
    pub(crate) heads: u32,
    pub(crate) vocabulary: u32,
    pub(crate) tokens: u32,
}

/// One weight on the device: `rows` x `columns` floats.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) address: u64,
    rows: u32,
    columns: u32,
    /// The layer it belongs to.
    pub(crate) layer: Option<u32>,
}

impl Weight {
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.columns) * 4
    }
}

/// Places of a layer's weights in the list of all.
const NORM: usize = 0;
const Q: usize = 1;
const K: usize = 2;
const V: usize = 3;
const O: usize = 4;
const POST: usize = 5;
const GATE: usize = 6;
const UP: usize = 7;
const DOWN: usize = 8;
const IN_LAYER: [&str; 9] = ["norm", "q", "k", "v", "o", "post_norm", "gate", "up", "down"];
const EPSILON: f32 = 1e-5;

/// Working memory of a forward; each is `tokens` x `dim` floats, `logits` by the vocabulary.
struct Buffers {
    ids: u64,
    x: u64,
    y: u64,
    q: u64,
    k: u64,
    v: u64,
    logits: u64,
}

/// The model: weight 0 is the embedding and the head, the last one the final norm.
pub(crate) struct Network {
    shape: Shape,
    pub(crate) weights: Vec<Weight>,
    buffers: Buffers,
    stream: u64,
}

/// Reproducible floats with a spread that keeps activations near 1.
fn values(seed: u64, rows: u32, columns: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let scale = 1.0 / (columns as f32).sqrt();
    let mut bytes = Vec::with_capacity(rows as usize * columns as usize * 4);
    for _ in 0..u64::from(rows) * u64::from(columns) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        bytes.extend((unit * scale).to_le_bytes());
    }
    bytes
}

/// The token with the largest logit of the last position.
pub(crate) fn best(logits: &[u8], vocabulary: u32) -> u32 {
    let last = logits.len() - vocabulary as usize * 4;
    let floats = logits[last..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let top = floats.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    top.map_or(0, |(index, _)| index as u32)
}

impl Network {
    pub(crate) fn build(gpu: &Gpu, shape: Shape) -> Result<Self, Failure> {
        let mut weights = Vec::new();
        let mut add = |name: String, rows: u32, columns: u32, layer: Option<u32>| -> Result<(), Failure> {
            let data = values(weights.len() as u64 + 1, rows, columns);
            let address = gpu.alloc(data.len())?;
            gpu.upload(address, &data)?;
            weights.push(Weight { name, address, rows, columns, layer });
            Ok(())
        };
        add("embed.weight".to_owned(), shape.vocabulary, shape.dim, None)?;
        for layer in 0..shape.layers {
            for part in IN_LAYER {
                let rows = if part.ends_with("norm") { 1 } else { shape.dim };
                add(format!("layers.{layer}.{part}.weight"), rows, shape.dim, Some(layer))?;
            }
        }
        add("norm.weight".to_owned(), 1, shape.dim, None)?;
        let size = shape.tokens as usize * shape.dim as usize * 4;
        let buffers = Buffers {
            ids: gpu.alloc(shape.tokens as usize * 4)?,
            x: gpu.alloc(size)?,
            y: gpu.alloc(size)?,
            q: gpu.alloc(size)?,
            k: gpu.alloc(size)?,
            v: gpu.alloc(size)?,
            logits: gpu.alloc(shape.tokens as usize * shape.vocabulary as usize * 4)?,
        };
        Ok(Self { shape, weights, buffers, stream: gpu.stream()? })
    }

    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(Weight::bytes).sum()
    }

    pub(crate) fn matrices(&self) -> usize {
        self.weights.iter().filter(|weight| weight.rows > 1).count()
    }

    /// One forward; returns the logits of all positions.
    pub(crate) fn forward(
        &self,
        gpu: &Gpu,
        ids: &[u32],
        naming: Option<&Naming>,
    ) -> Result<Vec<u8>, Failure> {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        gpu.upload(self.buffers.ids, &bytes)?;
        let step = Step { network: self, gpu, naming };
        if let Some(naming) = naming {
            naming.pass_begin();
        }
        step.all()?;
        if let Some(naming) = naming {
            naming.pass_end();
        }
        harness::driver::check("cuStreamSynchronize", gpu.driver.stream_synchronize(self.stream))?;
        gpu.download(self.buffers.logits, self.shape.tokens as usize * self.shape.vocabulary as usize * 4)
    }

    pub(crate) fn free(self, gpu: &Gpu) -> Result<(), Failure> {
        let b = self.buffers;
        let weights = self.weights.iter().map(|weight| weight.address);
        weights.chain([b.ids, b.x, b.y, b.q, b.k, b.v, b.logits]).try_for_each(|address| gpu.free(address))
    }
}

/// A forward under way.
struct Step<'a> {
    network: &'a Network,
    gpu: &'a Gpu,
    naming: Option<&'a Naming<'a>>,
}

impl Step<'_> {
    fn all(&self) -> Result<(), Failure> {
        let Network { shape, buffers, .. } = self.network;
        let table = self.network.weights[0].address;
        self.module(0, None, || {
            self.launch(
                "embed",
                &[Word(buffers.x), Word(table), Word(buffers.ids), Number(shape.dim), Number(shape.tokens)],
            )
        })?;
        for layer in 0..shape.layers {
            if let Some(naming) = self.naming {
                naming.trap_enter(layer);
            }
            self.layer(1 + layer as usize * IN_LAYER.len())?;
            if let Some(naming) = self.naming {
                naming.trap_exit(layer);
            }
        }
        let last = self.network.weights.len() - 1;
        self.norm(last, buffers.y, buffers.x)?;
        self.module(0, Some("head"), || self.product(0, buffers.logits, buffers.y))
    }

    fn layer(&self, first: usize) -> Result<(), Failure> {
        let Network { shape, buffers: b, .. } = self.network;
        self.norm(first + NORM, b.y, b.x)?;
        for (part, out) in [(Q, b.q), (K, b.k), (V, b.v)] {
            self.linear(first + part, out, b.y)?;
        }
        let dim = shape.dim / shape.heads;
        self.launch(
            "attention",
            &[
                Word(b.y),
                Word(b.q),
                Word(b.k),
                Word(b.v),
                Number(shape.heads),
                Number(dim),
                Number(shape.tokens),
            ],
        )?;
        self.linear(first + O, b.q, b.y)?;
        self.pairwise("add", b.x, b.x, b.q)?;
        self.norm(first + POST, b.y, b.x)?;
        self.linear(first + GATE, b.q, b.y)?;
        self.linear(first + UP, b.k, b.y)?;
        self.pairwise("silu_mul", b.v, b.q, b.k)?;
        self.linear(first + DOWN, b.q, b.v)?;
        self.pairwise("add", b.x, b.x, b.q)
    }

    fn linear(&self, weight: usize, out: u64, input: u64) -> Result<(), Failure> {
        self.module(weight, None, || self.product(weight, out, input))
    }

    fn product(&self, weight: usize, out: u64, input: u64) -> Result<(), Failure> {
        let weight = &self.network.weights[weight];
        let tokens = self.network.shape.tokens;
        self.launch(
            "gemv_batch",
            &[
                Word(out),
                Word(weight.address),
                Word(input),
                Number(weight.rows),
                Number(weight.columns),
                Number(tokens),
            ],
        )
    }

    fn norm(&self, weight: usize, out: u64, input: u64) -> Result<(), Failure> {
        let Shape { dim, tokens, .. } = self.network.shape;
        let address = self.network.weights[weight].address;
        self.module(weight, None, || {
            self.launch(
                "rmsnorm",
                &[Word(out), Word(input), Word(address), Number(dim), Number(tokens), Float(EPSILON)],
            )
        })
    }

    fn pairwise(&self, kernel: &'static str, out: u64, left: u64, right: u64) -> Result<(), Failure> {
        let count = self.network.shape.tokens * self.network.shape.dim;
        self.launch(kernel, &[Word(out), Word(left), Word(right), Number(count)])
    }

    /// Runs what a module's forward launches, between its events.
    fn module(
        &self,
        weight: usize,
        tied: Option<&str>,
        launches: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(naming) = self.naming else { return launches() };
        let owner = naming.owner_of(weight, tied.is_some());
        naming.owner_enter(owner);
        let done = launches();
        naming.owner_exit(owner);
        done
    }

    fn launch(&self, kernel: &'static str, arguments: &[Argument]) -> Result<(), Failure> {
        self.gpu.launch(kernel, self.network.stream, arguments)
    }
}
