/* Fuzzes the decoders of channel frames, contacts and segment descriptors: what is
 * accepted is within its bounds and comes out the same when written and read again. */
#include "fuzz.h"

#include "wire.h"

static void try_frame(const uint8_t *data, size_t size)
{
    uint8_t in[DDSTORE__FRAME_BYTES] = {0}, out[DDSTORE__FRAME_BYTES];
    ddstore__frame f, again;
    memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
    bool good = ddstore__frame_decode(in, &f);
    int64_t body = ddstore__request_body(&f);
    must(body >= -1 && body <= (int64_t)DDSTORE__RUNS_MAX * DDSTORE__RUN_BYTES);
    if (!good)
        return;
    ddstore__frame_encode(&f, out);
    must(ddstore__frame_decode(out, &again));
    must(again.type == f.type && again.status == f.status && again.count == f.count &&
         again.segment == f.segment && again.bytes == f.bytes);
}

static void try_contact(const uint8_t *data, size_t size)
{
    uint8_t out[DDSTORE__CONTACT_BYTES], twice[DDSTORE__CONTACT_BYTES];
    ddstore__contact c, again;
    if (!ddstore__contact_decode(data, size, &c))
        return;
    must(size == DDSTORE__CONTACT_BYTES);
    must(strlen(c.process.host) < sizeof(c.process.host));
    must(strlen(c.provider) < sizeof(c.provider));
    must(c.ofi_bytes <= DDSTORE__OFI_ADDRESS);
    for (int i = 0; i < DDSTORE__ADDRESSES; i++)
        must(c.address[i].family == 0 || c.address[i].family == 4 ||
             c.address[i].family == 6);
    ddstore__contact_encode(&c, out);
    must(ddstore__contact_decode(out, sizeof(out), &again));
    ddstore__contact_encode(&again, twice);
    must(memcmp(out, twice, sizeof(out)) == 0);
}

static void try_descriptor(const uint8_t *data, size_t size)
{
    uint8_t out[DDSTORE__DESCRIPTOR_BYTES];
    ddstore__descriptor d, again;
    if (!ddstore__descriptor_decode(data, size, &d))
        return;
    must(size == DDSTORE__DESCRIPTOR_BYTES && d.bytes < 1ull << 62);
    ddstore__descriptor_encode(&d, out);
    must(ddstore__descriptor_decode(out, sizeof(out), &again));
    must(again.id == d.id && again.bytes == d.bytes && again.fd == d.fd &&
         again.ofi_base == d.ofi_base && again.ofi_key == d.ofi_key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    switch (take_mode(&data, &size) % 3) {
    case 0:
        try_frame(data, size);
        break;
    case 1:
        try_contact(data, size);
        break;
    default:
        try_descriptor(data, size);
    }
    return 0;
}
