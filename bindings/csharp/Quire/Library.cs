namespace Quire
{
    /// <summary>
    /// The native library, which the first call loads: libquire.so.0, where the runtime looks for native libraries
    /// (beside the assembly, in a package's runtimes folder, LD_LIBRARY_PATH, the system's folders). Any thread may use
    /// this class.
    /// </summary>
    public static class Library
    {
        /// <summary>The version of the interface that this assembly was generated from.</summary>
        public const int InterfaceVersion = Constants.Version;

        /// <summary>Of the loaded library: major * 10000 + minor * 100 + patch.</summary>
        public static int Version
        {
            get { return Native.quire_get_version(); }
        }

        /// <summary>The same as text, such as "0.1.0".</summary>
        public static string VersionText
        {
            get { return Utf8.Static(Native.quire_get_version_string()); }
        }
    }

    internal static unsafe partial class Native
    {
        /// <summary>The SONAME, so that a library of another ABI is never taken.</summary>
        internal const string Library = "libquire.so.0";
    }
}
