//! Where an op ran, and where its gradient will.

use device::{Device, Stream, StreamId};

/// A stream. A default one is named only: who has a tensor of its device has the stream, and a handle would have to be
/// counted for every op.
pub(crate) struct OpStream {
    id: StreamId,
    side: Option<Stream>,
}

impl OpStream {
    /// The stream that ops on `device` run on now.
    #[inline]
    pub(crate) fn current(device: &Device) -> OpStream {
        Stream::with_current(device, |stream| OpStream {
            id: stream.id(),
            side: (!stream.is_default()).then(|| stream.clone()),
        })
    }

    pub(crate) fn id(&self) -> StreamId {
        self.id
    }

    /// Whether this is a place on `device`.
    #[inline]
    pub(crate) fn is_on(&self, device: &Device) -> bool {
        match &self.side {
            Some(side) => side.device() == device,
            None => device.default_stream().id() == self.id,
        }
    }

    /// The stream, if ops on `device`, which is its device, do not run on it already.
    #[inline]
    pub(crate) fn elsewhere(&self, device: &Device) -> Option<Stream> {
        if Stream::with_current(device, |current| current.id() == self.id) {
            return None;
        }
        Some(self.side.clone().unwrap_or_else(|| device.default_stream()))
    }
}

/// Runs `f` on `stream`, or where ops run already.
#[inline]
pub(crate) fn on<R>(stream: Option<&Stream>, f: impl FnOnce() -> R) -> R {
    match stream {
        Some(stream) => stream.scope(f),
        None => f(),
    }
}
