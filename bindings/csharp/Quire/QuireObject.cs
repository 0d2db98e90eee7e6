using System;
using System.Runtime.InteropServices;
using System.Threading.Tasks;

namespace Quire
{
    /// <summary>
    /// An object that owns a handle of the library. Objects keep their parents alive inside the library, so they may
    /// be disposed, or left to the garbage collector, in any order and on any thread. A call on an object that was
    /// disposed throws ObjectDisposedException.
    /// </summary>
    public abstract class QuireObject : IDisposable, IAsyncDisposable
    {
        private readonly QuireHandle handle;

        internal QuireObject(QuireHandle handle, QuireObject parent)
        {
            this.handle = handle;
            Parent = parent;
        }

        /// <summary>The handle, for functions of the C interface that a host calls itself.</summary>
        public SafeHandle SafeHandle
        {
            get { return handle; }
        }

        /// <summary>What it was made from, which is not collected before it; null: nothing of this binding.</summary>
        internal QuireObject Parent { get; }

        /// <summary>Whether Dispose leaves the object as it is for those who have it too (see Interop).</summary>
        internal bool IsShared { get; set; }

        /// <summary>Releases the handle.</summary>
        public virtual void Dispose()
        {
            handle.Dispose();
        }

        /// <summary>Dispose on a thread of the pool: that of a runtime, session or stream waits for its work to stop.</summary>
        public ValueTask DisposeAsync()
        {
            return new ValueTask(Task.Run(new Action(Dispose)));
        }

        /// <summary>Closes what only this object has, and releases the handle.</summary>
        internal void DisposeWith(Action close)
        {
            try
            {
                if (!IsShared && !handle.IsClosed) close();
            }
            catch (ObjectDisposedException)
            {
                // Another thread disposed it at the same time.
            }
            finally
            {
                handle.Dispose();
            }
        }
    }
}
