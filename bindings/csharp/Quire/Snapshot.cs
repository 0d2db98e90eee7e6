using System;
using System.IO;
using System.Threading;

namespace Quire
{
    /// <summary>Snapshots by themselves, without a model. Any thread may use this class.</summary>
    public static unsafe class Snapshot
    {
        /// <summary>
        /// What a snapshot says of itself, as a JSON object: "version", "bytes", "origin", "n_tokens", "n_pending" and
        /// more (quire_snapshot_describe in quire.h).
        /// </summary>
        public static string Describe(string path)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var pins = new Pins())
            {
                var text = (byte*)pins.Array(name);
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_snapshot_describe(text, Calls.Length(name), (byte*)buffer, capacity, out needed,
                        out error));
            }
        }

        /// <summary>The same of the whole of a stream that can seek.</summary>
        public static string Describe(Stream stream)
        {
            var source = new SnapshotSource(stream, true);
            NativeSnapshotReader reader = source.Open(false);
            NativeSnapshotReader* pointer = &reader;
            try
            {
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_snapshot_describe_from(pointer, (byte*)buffer, capacity, out needed, out error));
            }
            catch (QuireException exception) when (source.Failure != null)
            {
                throw exception.With(source.Failure);
            }
            finally
            {
                source.Release();
            }
        }

        /// <summary>Reads all of a snapshot and compares its checksums. Throws BadFile, which says what is damaged.</summary>
        public static void Verify(string path, IProgress<Progress> progress = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var call = new LongCall(progress, cancellationToken))
            fixed (byte* text = name)
            {
                NativeSnapshotOptions options = Options(call, false);
                int status = Native.quire_snapshot_verify(text, Calls.Length(name), &options, out NativeError error);
                call.Check(status, ref error);
            }
        }

        /// <summary>The same of the whole of a stream that can seek.</summary>
        public static void Verify(Stream stream, IProgress<Progress> progress = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            var source = new SnapshotSource(stream, true);
            using (var call = new LongCall(progress, cancellationToken))
            {
                NativeSnapshotOptions options = Options(call, false);
                NativeSnapshotReader reader = source.Open(false);
                try
                {
                    int status = Native.quire_snapshot_verify_from(&reader, &options, out NativeError error);
                    call.Check(status, ref error, source.Failure);
                }
                finally
                {
                    source.Release();
                }
            }
        }

        internal static NativeSnapshotOptions Options(LongCall call, bool whole)
        {
            NativeSnapshotOptions options;
            Native.quire_snapshot_options_init(&options, (UIntPtr)sizeof(NativeSnapshotOptions));
            options.flags = whole ? (uint)SnapshotFlags.Whole : 0;
            options.cancel = call.Cancel;
            options.progress = call.Callback;
            options.progress_user_data = call.UserData;
            return options;
        }
    }
}
