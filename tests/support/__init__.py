"""What tests are built of: a scripted engine, a raw client, the bytes of streams, recordings of real engines."""
