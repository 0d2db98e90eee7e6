using System;

namespace Quire
{
    /// <summary>A call of the library that failed. What it changed is nothing, unless its comment says otherwise.</summary>
    public sealed class QuireException : Exception
    {
        private QuireException(Status status, string message, long offset, int systemError, string description,
            Exception inner) : base(message, inner)
        {
            Status = status;
            Description = description;
            Offset = offset;
            SystemError = systemError;
        }

        /// <summary>What kind of failure it is.</summary>
        public Status Status { get; }

        /// <summary>What happened, for a person; Message begins with the status's name.</summary>
        public string Description { get; }

        /// <summary>The byte, column or token index that the description speaks of; -1 where there is none.</summary>
        public long Offset { get; }

        /// <summary>The system's error number (errno) where the system was the cause, else 0.</summary>
        public int SystemError { get; }

        internal static QuireException Busy(string description)
        {
            return new QuireException(Status.Busy, "BUSY: " + description, -1, 0, description, null);
        }

        internal static QuireException OutOfMemory(string description, Exception inner)
        {
            return new QuireException(Status.OutOfMemory, "OUT_OF_MEMORY: " + description, -1, 0, description, inner);
        }

        /// <summary>The same with what was behind it.</summary>
        internal QuireException With(Exception inner)
        {
            return new QuireException(Status, Message, Offset, SystemError, Description, inner);
        }

        internal static unsafe QuireException Of(int status, ref NativeError error, Exception inner)
        {
            string name = Utf8.Static(Native.quire_get_status_name(status));
            fixed (byte* message = error.message)
            {
                string description = Utf8.Terminated(message, Constants.ErrorMessageBytes);
                return new QuireException((Status)status, name + ": " + description, error.offset, error.os_error,
                    description, inner);
            }
        }
    }
}
