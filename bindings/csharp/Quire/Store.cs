using System;
using System.Collections.Generic;
using System.Threading;

namespace Quire
{
    /// <summary>
    /// A directory that keeps documents that were read, for every process that reads them again. Any thread may use it;
    /// Put also uses its session.
    /// </summary>
    public sealed unsafe class Store : QuireObject
    {
        internal Store(StoreHandle handle) : base(handle, null)
        {
            Handle = handle;
        }

        /// <summary>
        /// Opens the store, whose directory is made where it is missing, unless `mustExist`. `budgetBytes`: of all
        /// entries together; 0: no limit.
        /// </summary>
        public Store(string path, long budgetBytes = 0, bool mustExist = false)
            : this(Open(path, budgetBytes, mustExist))
        {
        }

        internal StoreHandle Handle { get; }

        private static StoreHandle Open(string path, long budgetBytes, bool mustExist)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            NativeStoreOptions options;
            Native.quire_store_options_init(&options, (UIntPtr)sizeof(NativeStoreOptions));
            options.flags = mustExist ? (uint)StoreFlags.MustExist : 0;
            options.budget_bytes = budgetBytes;
            fixed (byte* text = name)
            {
                Calls.Check(Native.quire_store_open(text, Calls.Length(name), &options, out StoreHandle store,
                    out NativeError error), ref error);
                return store;
            }
        }

        /// <summary>
        /// Puts what the session has read into the store. `title`: what people call the document; null or empty: an
        /// entry that is there keeps its own. Where the session was loaded from an entry or put there, only what is new
        /// is written, unless `whole`. Progress as in Runtime.LoadModel.
        /// </summary>
        public StoreMatch Put(Session session, string title = null, bool whole = false,
            IProgress<Progress> progress = null, CancellationToken cancellationToken = default(CancellationToken))
        {
            if (session == null) throw new ArgumentNullException(nameof(session));
            byte[] name = Utf8.Bytes(title ?? "", nameof(title));
            using (var call = new LongCall(progress, cancellationToken))
            fixed (byte* text = name)
            {
                NativeSnapshotOptions options = Snapshot.Options(call, whole);
                NativeStoreMatch match = NewMatch();
                int status = Native.quire_store_put(Handle, session.Handle, text, Calls.Length(name), &options, &match,
                    out NativeError error);
                call.Check(status, ref error);
                return new StoreMatch(&match);
            }
        }

        /// <summary>
        /// Looks for the entry that has most of the text, for a session of these options. Where nothing fits, the
        /// match has no name, and a reason.
        /// </summary>
        public StoreMatch Find(Model model, IEnumerable<int> tokens, SessionOptions options = null)
        {
            if (model == null) throw new ArgumentNullException(nameof(model));
            int[] ids = Calls.ToArray(tokens, nameof(tokens));
            using (var pins = new Pins())
            fixed (int* data = ids)
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                NativeStoreMatch match = NewMatch();
                Calls.Check(Native.quire_store_find(Handle, model.Handle, &native, data, Calls.Length(ids), &match,
                    out NativeError error), ref error);
                return new StoreMatch(&match);
            }
        }

        /// <summary>
        /// A session that holds as many of the first tokens as the store has (Session.TokenCount); feed it the others.
        /// Throws NotFound, which says why, where there are none.
        /// </summary>
        public Session Load(Model model, IEnumerable<int> tokens, SessionOptions options = null)
        {
            return Load(model, tokens, options, out StoreMatch match);
        }

        /// <summary>The same, with what it found.</summary>
        public Session Load(Model model, IEnumerable<int> tokens, SessionOptions options, out StoreMatch match)
        {
            if (model == null) throw new ArgumentNullException(nameof(model));
            int[] ids = Calls.ToArray(tokens, nameof(tokens));
            using (var pins = new Pins())
            fixed (int* data = ids)
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                NativeStoreMatch found = NewMatch();
                Calls.Check(Native.quire_store_load(Handle, model.Handle, &native, data, Calls.Length(ids), &found,
                    out SessionHandle session, out NativeError error), ref error);
                match = new StoreMatch(&found);
                return new Session(session, model);
            }
        }

        /// <summary>Removes an entry; sessions that have it open go on.</summary>
        public void Remove(string entryName)
        {
            byte[] name = Utf8.Bytes(entryName, nameof(entryName));
            fixed (byte* text = name)
            {
                Calls.Check(Native.quire_store_remove(Handle, text, Calls.Length(name), out NativeError error),
                    ref error);
            }
        }

        /// <summary>Reads all of an entry and compares its checksums, as Snapshot.Verify does.</summary>
        public void Verify(string entryName, IProgress<Progress> progress = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            byte[] name = Utf8.Bytes(entryName, nameof(entryName));
            using (var call = new LongCall(progress, cancellationToken))
            fixed (byte* text = name)
            {
                NativeSnapshotOptions options = Snapshot.Options(call, false);
                int status = Native.quire_store_verify(Handle, text, Calls.Length(name), &options,
                    out NativeError error);
                call.Check(status, ref error);
            }
        }

        /// <summary>What is in the store, as JSON: "path", "budget_bytes", "bytes", "entries" and "unknown".</summary>
        public string Describe()
        {
            return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_store_describe(Handle, (byte*)buffer, capacity, out needed, out error));
        }

        private static NativeStoreMatch NewMatch()
        {
            NativeStoreMatch match;
            Native.quire_store_match_init(&match, (UIntPtr)sizeof(NativeStoreMatch));
            return match;
        }
    }
}
