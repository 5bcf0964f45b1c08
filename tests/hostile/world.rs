//! What random calls work on, and how they choose.

use streamgrad::allocator::{self, DeviceMemory};
use streamgrad::device::{Buffer, Shared};
use streamgrad::kernels::{Layout, View};
use streamgrad::{CpuConfig, DType, Device, Graph, Policy, Result, Schedule, Stream, Tensor, Tensors};

/// What hostile code panics with.
pub(crate) struct Hostile;

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Whether one in `of` happens.
    pub(crate) fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Mostly a sensible number, now and then an absurd one.
    pub(crate) fn size(&mut self, sensible: usize) -> usize {
        match self.below(40) {
            0 => usize::MAX - self.below(3),
            1 => isize::MAX as usize - 1 + self.below(4),
            2 => 1 << self.below(64),
            _ => self.below(sensible),
        }
    }

    pub(crate) fn axis(&mut self, rank: usize) -> isize {
        match self.below(30) {
            0 => *self.of(&[isize::MIN, isize::MAX, -1 - rank as isize, rank as isize]),
            _ => self.below(2 * rank + 1) as isize - rank as isize,
        }
    }

    pub(crate) fn float(&mut self) -> f64 {
        *self.of(&[0.0, 1.0, -1.0, 0.5, 1e30, -1e-30, f64::NAN, f64::INFINITY, 3.0, 1e-5])
    }

    pub(crate) fn dtype(&mut self) -> DType {
        use DType::{BF16, Bool, F16, F32, F64, I64, U8};
        *self.of(&[F32, F32, F32, F64, I64, U8, Bool, BF16, F16])
    }

    pub(crate) fn float_dtype(&mut self) -> DType {
        *self.of(&[DType::F32, DType::F32, DType::F64, DType::BF16, DType::F16])
    }

    pub(crate) fn shape(&mut self) -> Vec<usize> {
        (0..self.below(5)).map(|_| self.below(6)).collect()
    }
}

/// Which tensors each call visits, in which order: another one at each call.
pub(crate) struct Changing(pub(crate) Vec<Tensor>, pub(crate) u64);

impl Tensors for Changing {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let mut random =
            Random::new(self.1.wrapping_add(CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
        let mut tensors = self.0.clone();
        for _ in 0..tensors.len() + random.below(2) {
            let at = random.below(tensors.len());
            tensors[at] = f(&self.0[random.below(self.0.len())])?;
        }
        if random.one_in(20) {
            std::panic::panic_any(Hostile);
        }
        Ok(Changing(tensors, self.1))
    }

    fn form(&self, f: &mut dyn FnMut(u64)) {
        f(CALLS.load(std::sync::atomic::Ordering::Relaxed) / 8);
    }
}

static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) device: Device,
    pub(crate) other: Device,
    pub(crate) streams: Vec<Stream>,
    /// Memory for views of all kinds, which overlap.
    pub(crate) buffers: Vec<Shared<Buffer>>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) graphs: Vec<Graph<Changing>>,
    /// Tensors that no call is given, with their values.
    canaries: Vec<(Tensor, Vec<i64>)>,
}

/// Bytes of the buffers that views are of.
const BYTES: [usize; 4] = [1 << 13, 1 << 12, 100, 0];

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let schedule = match random.below(8) {
            0..4 => Schedule::Inline,
            4..6 => Schedule::Threads,
            6 => Schedule::Explore(Policy::Random { seed }),
            _ => Schedule::Explore(Policy::NewestFirst),
        };
        let config =
            |threads, schedule| CpuConfig { threads: Some(threads), schedule, ..CpuConfig::default() };
        let choices = (0..random.below(3)).map(|_| random.size(4)).collect();
        let device = Device::cpu_with(CpuConfig { choices, ..config(1 + random.below(2), schedule) });
        let other = Device::cpu_with(config(1, Schedule::Inline));
        for device in [&device, &other] {
            device.set_memory_limit(Some(64 << 20));
        }
        let mut streams = vec![device.default_stream()];
        streams.extend((0..2).map(|_| device.new_stream().unwrap()));
        streams.push(other.default_stream());
        let canary = |at: i64| {
            let values = vec![at * 0x0101_0101_0101; 5];
            (Tensor::from_slice(&values, &[5], &device).unwrap(), values)
        };
        let canaries = (0..16).map(canary).collect();
        let buffer = |&bytes: &usize| allocator::allocate_shared(&streams[0], bytes).unwrap();
        let mut buffers: Vec<Shared<Buffer>> = BYTES.iter().map(buffer).collect();
        buffers.push(allocator::allocate_shared(&streams[3], 256).unwrap());
        let mut world = World {
            random,
            device,
            other,
            streams,
            buffers,
            tensors: Vec::new(),
            graphs: Vec::new(),
            canaries,
        };
        world.refill().unwrap();
        for _ in 0..6 {
            world.make().unwrap();
        }
        world
    }

    /// Random content; indices of the first buffer are small numbers, mostly.
    pub(crate) fn refill(&mut self) -> Result<()> {
        for buffer in &self.buffers {
            let seed = self.random.next();
            let _ = buffer.update(|bytes| {
                let mut random = Random::new(seed);
                for word in bytes.chunks_mut(8) {
                    let value = if random.one_in(50) { random.next() as i64 } else { random.below(4) as i64 };
                    word.copy_from_slice(&value.to_ne_bytes()[..word.len()]);
                }
            });
        }
        Ok(())
    }

    /// One more tensor, in place of another one if there are many.
    pub(crate) fn make(&mut self) -> Result<()> {
        let (shape, dtype) = (self.random.shape(), self.random.dtype());
        let device = if self.random.one_in(20) { &self.other } else { &self.device };
        let tensor = match self.random.below(3) {
            0 => Tensor::zeros(&shape, dtype, device)?,
            1 => Tensor::full(&shape, self.random.float(), dtype, device)?,
            _ => Tensor::empty(&shape, dtype, device)?,
        };
        self.keep(tensor);
        Ok(())
    }

    pub(crate) fn keep(&mut self, tensor: Tensor) {
        if tensor.elements() > 1 << 16 {
            return;
        }
        if self.tensors.len() < 24 {
            return self.tensors.push(tensor);
        }
        let at = self.random.below(self.tensors.len());
        self.tensors[at] = tensor;
    }

    pub(crate) fn tensor(&mut self) -> Tensor {
        self.random.of(&self.tensors).clone()
    }

    pub(crate) fn stream(&mut self) -> Stream {
        self.random.of(&self.streams).clone()
    }

    pub(crate) fn buffer(&mut self) -> Shared<Buffer> {
        self.random.of(&self.buffers).clone()
    }

    /// A layout for elements of `shape`, mostly: in whatever order of the axes, with gaps, expanded, or somewhere else.
    pub(crate) fn layout(&mut self, shape: &[usize]) -> Layout {
        let random = &mut self.random;
        let mut shape = shape.to_vec();
        if random.one_in(25) {
            shape.iter_mut().for_each(|size| *size = random.size(5));
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if random.one_in(3) {
            (1..order.len()).for_each(|i| order.swap(i, random.below(i + 1)));
        }
        let mut stored: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let mut narrowed = None;
        if !stored.is_empty() && random.one_in(3) {
            let axis = random.below(stored.len());
            let (before, after) = (random.size(3), random.below(2));
            narrowed = Some((axis, before, stored[axis]));
            stored[axis] = stored[axis].saturating_add(before).saturating_add(after);
        }
        let expanded = (!stored.is_empty() && random.one_in(8)).then(|| random.below(stored.len()));
        let whole = stored.clone();
        expanded.into_iter().for_each(|axis| stored[axis] = 1);
        let mut layout = Layout::contiguous(&stored);
        if expanded.is_some() {
            layout = layout.expand("hostile", &whole).unwrap_or(layout);
        }
        if let Some((axis, start, len)) = narrowed {
            layout = layout.narrow("hostile", axis as isize, start, len).unwrap_or(layout);
        }
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
        layout.permute("hostile", &back).unwrap_or(layout)
    }

    /// A layout without gaps, with an offset now and then.
    pub(crate) fn dense(&mut self, shape: &[usize]) -> Layout {
        if self.random.one_in(12) {
            return self.layout(shape);
        }
        let rows: Vec<usize> =
            std::iter::once(1 + self.random.below(4)).chain(shape.iter().copied()).collect();
        let whole = Layout::contiguous(&rows);
        let row = self.random.below(rows[0]);
        let part = whole.narrow("hostile", 0, row, 1).and_then(|part| part.squeeze("hostile", 0));
        part.unwrap_or(whole)
    }

    /// Whether a layout is small enough to go through.
    pub(crate) fn is_small(layouts: &[&Layout]) -> bool {
        layouts.iter().all(|layout| layout.elements() < 1 << 14)
    }

    pub(crate) fn view<'a>(&mut self, buffer: &'a Buffer, dtype: DType, layout: &'a Layout) -> View<'a> {
        let dtype = if self.random.one_in(40) { self.random.dtype() } else { dtype };
        View::new(buffer, dtype, layout)
    }

    /// Waits for everything, and for every error to be reported.
    pub(crate) fn settle(&self) {
        for device in [&self.device, &self.other] {
            while device.synchronize().is_err() {}
        }
    }

    /// Checks that what nobody was given is as it was, and that the device works.
    pub(crate) fn check(mut self) {
        self.graphs.clear();
        self.tensors.clear();
        self.settle();
        for (tensor, values) in &self.canaries {
            assert_eq!(&tensor.to_vec::<i64>().unwrap(), values);
        }
        let one = Tensor::ones(&[3], DType::F32, &self.device).unwrap();
        assert_eq!(one.add(&one).unwrap().to_vec::<f32>().unwrap(), [2.0; 3]);
    }
}
