using System;

namespace Quire
{
    /// <summary>
    /// Objects for handles that native code of this process made. Each adds a reference, which disposing drops; it
    /// closes nothing, so the native code's own reference stays good. Any thread may use this class.
    /// </summary>
    public static class Interop
    {
        /// <summary>Of a quire_runtime*.</summary>
        public static Runtime ShareRuntime(IntPtr runtime)
        {
            return new Runtime(QuireHandle.Share<RuntimeHandle>(runtime)) { IsShared = true };
        }

        /// <summary>Of a quire_model*.</summary>
        public static Model ShareModel(IntPtr model)
        {
            return new Model(QuireHandle.Share<ModelHandle>(model), null) { IsShared = true };
        }

        /// <summary>Of a quire_adapter*.</summary>
        public static Adapter ShareAdapter(IntPtr adapter)
        {
            return new Adapter(QuireHandle.Share<AdapterHandle>(adapter), null) { IsShared = true };
        }

        /// <summary>Of a quire_tokenizer*.</summary>
        public static Tokenizer ShareTokenizer(IntPtr tokenizer)
        {
            return new Tokenizer(QuireHandle.Share<TokenizerHandle>(tokenizer), null) { IsShared = true };
        }

        /// <summary>Of a quire_session*.</summary>
        public static Session ShareSession(IntPtr session)
        {
            return new Session(QuireHandle.Share<SessionHandle>(session), null) { IsShared = true };
        }

        /// <summary>Of a quire_stream*.</summary>
        public static EventStream ShareStream(IntPtr stream)
        {
            return new EventStream(QuireHandle.Share<StreamHandle>(stream), null) { IsShared = true };
        }

        /// <summary>Of a quire_store*.</summary>
        public static Store ShareStore(IntPtr store)
        {
            return new Store(QuireHandle.Share<StoreHandle>(store)) { IsShared = true };
        }
    }
}
