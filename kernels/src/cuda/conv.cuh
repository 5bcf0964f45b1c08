// Parameters of a convolution.

struct Conv : Window {
    u32 each;  // filters of a channel
    u32 pad;
    u64 planes;
};
